"""Where a run is placed: machine checks, placement, sessions and jobs on Ray. Knows no other package of the project."""
