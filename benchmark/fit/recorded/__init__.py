"""Recording a traced job: every thread's calls on storage, the times between them, and who waited for whom."""
