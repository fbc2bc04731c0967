"""How a learner's weights reach the engines: packed by the bucket, moved by a transport, put in place, and proven."""
