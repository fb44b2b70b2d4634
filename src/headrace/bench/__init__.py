"""The benchmark harness: ours and Spark's own state stores, on the same rows, in turns.

A benchmark lives in ``benchmarks/NAME/`` of the source tree; what it compares are *lanes*: an engine with its parameters.
Every lane is a process of its own with a JVM of its own, because engines that share one would share its heap, its garbage
collector and its compiled code. A lane's query is started once and runs on; between its turns the whole process tree is
stopped by a signal, so that nobody works, not even in the background, in another's time.

    discover -> lanes -> preload and warm up each -> turns: resume, measure, pause -> finish: stop and check -> report

A batch counts if it began after its lane was resumed: the one that a pause cut in two does not, nor do warm-up batches.
"""
