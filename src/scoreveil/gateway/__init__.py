"""The private prediction gateway: `scoreveil serve`.

It stands in front of a model that already serves (KServe, Triton, MLServer, MLflow, TF Serving), or serves one
itself, and no client ever sees a raw score. What is not allow-listed does not pass; what fails, fails closed.

    app.py       one request, from bytes to bytes        config.py       what a configuration is
    routes.py    every path that is served               config_file.py  how it is read
    handlers.py  what is done there                      secrets.py      keys from files or the environment
    served.py    a model, its veils and its budget       auth.py         who asks
    sources.py   where scores come from, in one shape    limits.py       how much, how often
    upstream.py  a model behind, over HTTP               metrics.py      what is counted
    rows.py      MLflow and TF Serving behind            admin.py        the page, /metrics, /openapi.json
    embedded.py  a model inside                          worker.py       the life of one worker
    onnx_model.py, skops_model.py, loaded.py             server.py       processes and signals
                 how it is read                          shared_config.py    what the processes share
    probabilities.py  logits as scores                   grpc_service.py the same over gRPC
    lists.py     lists of the largest, and their order   opening.py      what is opened before all that
    openapi.py   the routes, described
"""
