"""Predictions over HTTP: the raw columns of all silos in one request. Needs the extra ``tdcd[serve]``.

settings.py   where to listen, limits, the token
inputs.py     what a row of a silo looks like, and how rows become numbers: as those of tables do
schema.py     requests and replies as pydantic has them
problems.py   what is wrong with a request, in one shape
predictor.py  replies to several requests at once, of one model
batcher.py    requests that wait, and the one thread that answers them
metrics.py    figures for Prometheus
reload.py     another model in place of the one that is served
openapi.py    the description of the interface, and a page of it
guard.py      tokens, limits of bodies and of requests under way
app.py        the routes
server.py     listening and stopping
"""
