"""The private prediction gateway: `scoreveil serve`.

It stands in front of a model that already serves (KServe, Triton, MLServer, MLflow, TF Serving, any OpenAI-compatible
server of language models), or serves one itself, and no client ever sees a raw score. What is not allow-listed does
not pass; what fails, fails closed.

    app.py       one request, from bytes to bytes        config.py       what a configuration is
    routes.py    every path that is served               config_file.py  how it is read
    handlers.py  what is done there                      secrets.py      keys from files or the environment
    served.py    a model and its veils                   auth.py         who asks
    memory.py    which records it has answered           ledger_link.py  the ledger that it needs for that
    sources.py   where scores come from, in one shape    limits.py       how much, how often
    upstream.py  a model behind, over HTTP               metrics.py      what is counted
    http_client.py   how it is asked
    rows.py      MLflow and TF Serving behind            admin.py        the page, /metrics, /openapi.json
    language.py  a language model behind                 worker.py       the life of one worker
    completions.py, labels.py                            server.py       processes and signals
                 what is asked and said there            shared_config.py    what the processes share
    embedded.py  a model inside
    onnx_model.py, skops_model.py, loaded.py
                 how it is read
    probabilities.py  logits as scores                   grpc_service.py the same over gRPC
    lists.py     lists of the largest, and their order   opening.py      what is opened before all that
    openapi.py   the routes, described
"""
