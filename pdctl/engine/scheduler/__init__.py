"""One scheduler process per rank: queues, batches, the event loop."""
