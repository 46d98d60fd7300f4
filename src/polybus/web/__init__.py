"""The dashboard: one process beside the broker that asks it about itself and shows the answers to browsers.

It is a client of the admin socket like any other, so the broker never waits for it.  One poller asks, and all
viewers get the same bytes: ten of them cost the broker what one costs.  History comes from the pipeline's
tables and from the journal, which are files.  Nothing here is imported by the broker.
"""
