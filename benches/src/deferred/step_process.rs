//! [`StepProcess`]: process that executes [`StepCommand`]s.

use super::queue_bench::QueueBench;
use crate::{
    bench_process::BenchProcess,
    bench_result::BenchResult,
    queue::{StepCommand, StepResult, StepperArgs},
};

/// Process that executes [`StepCommand`]s.
pub(super) struct StepProcess {
    process: BenchProcess,
}

impl StepProcess {
    pub(super) fn start(bench: &mut QueueBench, jobs: u64) -> BenchResult<Self> {
        bench.runner.server.flush()?;
        let args = StepperArgs { port: bench.runner.server.port(), jobs };
        let mut process = BenchProcess::start("rig", &args)?;
        process.wait_until_ready()?;
        Ok(Self { process })
    }

    pub(super) fn execute(&mut self, command: StepCommand) -> BenchResult<StepResult> {
        self.process.write_line(&serde_json::to_string(&command)?)?;
        let result: StepResult = self.process.read_json()?;
        if result.wrong_runs > 0 {
            return Err(format!("{} runs were repeated or unknown", result.wrong_runs).into());
        }
        Ok(result)
    }
}
