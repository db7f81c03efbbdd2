"""What every host of nodes needs, whether it hosts all of them (the simulator) or one (a deployed process).

- Before a run: `setup` (data, partition, model), `sizes`, `start`, `describe`, `devices`.
- A round: `plan` (graph, faults and weights), `batches`, `population` (local update and aggregate of the hosted nodes), `inbox` and `fragments`
  (what a receiver gets), `mixing_arithmetic` and `aggregating` (how rows become one), `message_coding`, `parts`.
- Asynchronous methods: `peers` (which peers a node may choose), `lazy_models` (models computed when a number is needed).
- Results: `recorder` (evaluates, records, saves), `run_directory`, `checkpoint`, `evaluations`, `counters`, `tensor_files`, `saved_models`, `run_state`.

May be imported by `sharding/`, `simulator/`, `deploy/` and everything above them. To add a host: a `Host` with a `Population`, and a `RunRecorder` for each
run directory.
"""
