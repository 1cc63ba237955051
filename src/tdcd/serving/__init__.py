"""A trained federation put to use: assembled, verified, predicting from tables, exported, served, explained.

record.py    what a model directory holds besides weights and preparations: model.json
part.py      what one run brings to a model
assemble.py  one model from a simulation's run, or from the runs of all hubs
model.py     a model, or a run that has ended, read and verified
opened.py    new tables, and which IDs all of them have
key_store.py IDs that are too many for memory, a part at a time
tables.py    predictions from tables, a batch at a time
frames.py    predictions as a table; frame_file.py: as a file
export/      models as files that need no tdcd
explain.py   what silos and columns contribute
"""
