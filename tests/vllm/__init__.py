"""The engine vllm, really run: in an environment that has it, `make test-engines`."""
