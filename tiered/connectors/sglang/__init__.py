"""SGLang: a "dynamic" HiCache storage backend that keeps the pages of its host pool in the node's worker.

``storage`` holds the class that SGLang loads, and alone imports SGLang; all the rest is its subject.
"""
