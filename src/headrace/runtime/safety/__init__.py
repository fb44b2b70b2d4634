"""Where state is safe: at home (the executor that wrote it), on peers (other executors), and in the durable store.

    every version               after each batch               from time to time                after a loss
    tasks write runs at home -> replicas.py: copies for peers -> checkpointer.py: ships runs -> replay.py: computes versions again
            |                                                     to the durable store            from the journal and the source
            +-> the journal: one small durable record, before results leave

`copies.py` knows who has which run. With ``headrace.checkpointSeconds=0``, which is the default, each version is durable when it is
committed; then there is no journal and nothing to replay.
"""
