"""``python -m orchestrator`` is the ``envwright`` command, for Ray jobs that run from a working directory."""

from orchestrator.cli import main

if __name__ == "__main__":
    main()
