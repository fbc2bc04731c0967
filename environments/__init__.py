"""What can be trained on: the Environment contract (``base``), the registry, and one package per task family."""
