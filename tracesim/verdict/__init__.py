"""The verdict: does a twin differ from its job more than reruns do, and are the traces reliable?"""
