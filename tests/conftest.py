"""What must be set before anything imports Ray, vLLM or a compute library."""

import os
import signal

# A shell starts background jobs with Ctrl-C ignored, and their children would ignore it as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Unset, a CPU engine's threads fight over the cores and it runs ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Tests start their own clusters; a shell that points at another one must not change what they test.
os.environ.pop("RAY_ADDRESS", None)
