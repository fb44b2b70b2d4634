"""The benchmark harness: runs Headrace and Spark's own state stores on the same rows, in turns.

A benchmark is a folder ``benchmarks/NAME/`` of the source tree. It compares *lanes*: a lane is an engine with its parameters.
Every lane is a separate process with its own JVM. Engines that share a JVM would share its heap, its garbage collector and its
compiled code. A lane's query is started once and keeps running. Between its turns a signal stops the whole process tree, so
that no lane works in another lane's turn, not even in the background.

    discover -> lanes -> preload and warm up each -> turns: resume, measure, pause -> finish: stop and check -> report

A batch counts if it began after its lane was resumed. Warm-up batches and a batch that a pause interrupted do not count.
"""
