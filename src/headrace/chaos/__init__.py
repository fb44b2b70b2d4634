"""``headrace chaos``: faults by a seed against a user's running query, compared with Spark's batch answer; see `docs/chaos.md`.

The command itself starts no Spark. It has two processes: the *program* runs the user's query with Headrace and is what faults hit, and the
*answer* runs the same query on plain Spark over the same rows. Both are commanded by lines of JSON.

    plan (pure) ── faults of a seed ──► campaign ── commands, signals ──► program (Spark and Headrace) ── results ──► folder
                                           │                                                                           │
                                        report ◄── verdict ── judge (pure) ◄────────────── rows ──────────────────────┤
                                                                            answer (plain Spark) ── rows ─────────────┘
"""
