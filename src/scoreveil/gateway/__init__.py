"""The private prediction gateway: `scoreveil serve`.

It stands in front of a model that already serves (KServe, Triton, MLServer, MLflow, TF Serving, any OpenAI-compatible
server of language models), or serves one itself, and no client ever sees a raw score. What is not allow-listed does
not pass; what fails, fails closed.

    app.py       one request, from bytes to bytes        config.py       the settings: plain data that checks itself
    routes.py    every path that is served               config_file.py  how they are read
    handlers.py  what is done there                      opened.py       settings with the veils that they name
    served.py    a model and its veils                   secrets.py      keys from files or the environment
    memory.py    which records it has answered           auth.py         who asks
    sources.py   where scores come from, in one shape    ledger_link.py  the ledger that memory needs
    upstream.py  a model behind, over HTTP               limits.py       how much, how often
    http_client.py   how it is asked                     metrics.py      what is counted
    rows.py      MLflow and TF Serving behind            admin.py        the page, /metrics, /openapi.json
    language.py  a language model behind                 worker.py       the life of one worker
    completions.py, labels.py                            server.py       processes and signals
                 what is asked and said there            shared_config.py    what the processes share
    embedded_source.py   a model inside                  startup_checks.py   what is tried before anything listens
    embedded_model.py, onnx_model.py, skops_model.py     grpc_service.py the same over gRPC
                 how it is read                          openapi.py      the routes, described
    probabilities.py     logits as scores                lists.py        lists of the largest, and their order
"""
