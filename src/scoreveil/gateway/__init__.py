"""The private prediction gateway: `scoreveil serve`.

It stands in front of a model that already serves (KServe, Triton, MLServer, MLflow, TF Serving), or serves one
itself, and no client ever sees a raw score. What is not allow-listed does not pass; what fails, fails closed.

    config.py     one TOML file, checked whole          app.py        one request, from bytes to bytes
    protocol.py   the Open Inference Protocol v2        upstream.py   the model behind, over HTTP
    mlflow.py     MLflow's /invocations                 embedded.py   the model inside: ONNX, skops, Python
    tfserving.py  TF Serving's :predict                 answers.py    sticky and budgeted answers
    auth.py       who asks                              limits.py     how much, how often
    secrets.py    keys from files or the environment    metrics.py    what is counted
    admin.py      the page, /metrics, /openapi.json     server.py     processes and signals
"""
