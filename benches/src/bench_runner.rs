//! Runner of all measurement windows: it has one Redis server, starts processes and counts
//! commands.

use std::time::Duration;

use crate::{
    acquire_event::{AcquireEvent, EventsHeader},
    bench_args::MeasurementSettings,
    bench_process::BenchProcess,
    bench_result::BenchResult,
    clock,
    command_origins::{CommandMonitor, CommandOrigins},
    core_affinity, cpu_share,
    lock_contender::{ContenderConfig, ContenderKind, LockLoad},
    lock_measurement::{LockMeasurement, ProcessEvents},
    redis_server::{RedisServer, ServerCounters},
    worker_plan::{LockKeys, LockScenario, WorkerPlan},
};

/// Time for all processes to receive the start command before their warm-up.
const START_DELAY: Duration = Duration::from_millis(5);

pub(crate) struct BenchRunner {
    pub(crate) server: RedisServer,
    pub(crate) settings: MeasurementSettings,
    /// Violations that fail the run, such as failed calls of lockgate or two holders at once.
    pub(crate) failures: Vec<String>,
    /// No other process was found to use the cores.
    pub(crate) is_undisturbed: bool,
}

/// Counters of the server at both ends of a window.
pub(crate) struct WindowCounters {
    pub(crate) before: ServerCounters,
    pub(crate) after: ServerCounters,
}

impl BenchRunner {
    pub(crate) fn start(settings: MeasurementSettings) -> BenchResult<Self> {
        let cores = core_affinity::pin_to_two_cores()?;
        let mut server = RedisServer::start()?;
        let (version, port) = (server.version()?, server.port());
        let MeasurementSettings { rounds, warmup, window } = settings;
        println!(
            "redis-server {version} on 127.0.0.1:{port}; all processes on {cores} cores; \
             {rounds} rounds of {window:?} after {warmup:?} of warm-up"
        );
        let is_undisturbed = cpu_share::check_undisturbed();
        Ok(Self { server, settings, failures: Vec::new(), is_undisturbed })
    }

    /// Measures one window of one contender, with an empty server and new processes.
    pub(crate) fn measure_window(
        &mut self,
        contender: ContenderConfig,
        scenario: &LockScenario,
        origins: &CommandOrigins,
    ) -> BenchResult<LockMeasurement> {
        self.server.flush()?;
        let window = self.settings.window;
        let port = self.server.port();
        let mut processes = Vec::new();
        for process_index in 0..scenario.processes {
            let plan = WorkerPlan {
                contender,
                scenario: *scenario,
                process_index,
                redis_port: port,
                window,
            };
            processes.push(BenchProcess::start("worker", &plan)?);
        }
        let counters = self.count_window(&mut processes)?;
        let process_events =
            processes.iter_mut().map(read_process_events).collect::<BenchResult<Vec<_>>>()?;
        let commands = origins.count_between(&counters.before, &counters.after);
        Ok(LockMeasurement::from_events(scenario, process_events, commands, window.as_secs_f64()))
    }

    /// Starts the prepared processes and reads the counters at both ends of their window.
    pub(crate) fn count_window(
        &mut self,
        processes: &mut [BenchProcess],
    ) -> BenchResult<WindowCounters> {
        processes.iter_mut().try_for_each(BenchProcess::wait_until_ready)?;
        let start = clock::now() + clock::duration_nanos(START_DELAY + self.settings.warmup);
        processes.iter_mut().try_for_each(|process| process.write_line(&start.to_string()))?;
        clock::sleep_until(start);
        let before = self.server.read_counters()?;
        clock::sleep_until(start + clock::duration_nanos(self.settings.window));
        let after = self.server.read_counters()?;
        Ok(WindowCounters { before, after })
    }

    /// Runs `operation` with a short window under `MONITOR`, to learn the origin of each command.
    pub(crate) fn observe_origins(
        &mut self,
        operation: impl FnOnce(&mut Self) -> BenchResult<()>,
    ) -> BenchResult<CommandOrigins> {
        let settings = self.settings;
        self.settings.window = Duration::from_millis(200);
        let monitor = CommandMonitor::start(self.server.port())?;
        let result = operation(self);
        let origins = monitor.stop()?;
        self.settings = settings;
        result.map(|()| origins)
    }

    /// Measures a window of `PING` round trips.
    pub(crate) fn measure_ping(&mut self) -> BenchResult<LockMeasurement> {
        let scenario = LockScenario {
            processes: 1,
            tasks_per_process: 1,
            keys: LockKeys::Own(1),
            work_iterations: 0,
        };
        let ping = ContenderConfig::with_best_setting(ContenderKind::Ping, LockLoad::Uncontended);
        self.measure_window(ping, &scenario, &CommandOrigins::default())
    }

    pub(crate) fn observe_contender(
        &mut self,
        contender: ContenderConfig,
        scenario: &LockScenario,
    ) -> BenchResult<CommandOrigins> {
        self.observe_origins(|bench| {
            bench.measure_window(contender, scenario, &CommandOrigins::default())?;
            Ok(())
        })
    }
}

fn read_process_events(process: &mut BenchProcess) -> BenchResult<ProcessEvents> {
    let header: EventsHeader = process.read_json()?;
    let events = AcquireEvent::decode_all(
        &process.read_bytes(header.event_count * AcquireEvent::ENCODED_SIZE)?,
    );
    Ok(ProcessEvents { header, events })
}
