"""A simulation spread over a cluster: hubs and bundles of clients as long-lived actors, the round script between them.

engine.py   what the training loop calls: starts rounds, repeats those that lost an actor
hub.py      runs the round script for one silo; its clients are in bundles, its peers are other hubs
bundle.py   computes some clients of one silo, on rows that it reads once
fold.py     sums along a fixed tree of groups of clients: the same bits for any number of bundles
version.py  what must be the same on all nodes
fleet.py    what a cluster must offer, and one in this process
survey.py   what each node has, before actors are placed there
ray_session.py  joins or starts a cluster of Ray; it and the next are the only modules that import Ray
ray_fleet.py  the actors of such a cluster
"""
