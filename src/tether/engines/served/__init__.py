"""Engines behind HTTP: vLLM's server, SGLang's, and any that takes and gives token ids in OpenAI's way.

One engine (``engine``) speaks one protocol of several. A protocol says how a question is written and an answer read,
and how a server is held still, given weights and let go on; nothing else here knows a server's words. Text never
passes: ids go out, ids come back, and what does not match is an error that names the request.

These engines live in real time. The package for HTTP is imported when a server is first asked, never before.
"""
