//! `SlowlogMonitor`: checks how long scripts block the server, on a machine with other load.
//!
//! The slow log measures scripts by the wall clock, and the machine may suspend the server in the
//! middle of one. A control script of constant cost runs all the while: the share of its long calls
//! measures the machine, and the other scripts may have the same share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockgate_tests::ledger::JobFleet;
use redis::aio::MultiplexedConnection;
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
};

/// A longer call blocks the server too long, us.
const LONG_CALL_US: u64 = 5_000;

/// Takes one or two ms on an idle server, so its total is comparable with that of the other
/// scripts.
const CONTROL_SCRIPT: &str = "local n = 0 for i = 1, 100000 do n = n + i end return n";

/// Pause between two control calls.
const CONTROL_PAUSE: Duration = Duration::from_millis(8);

/// Interval of the slow log reads; the log does not overflow in between.
const SLOWLOG_INTERVAL: Duration = Duration::from_millis(100);

/// With this many calls, at least one is not delayed by the machine.
const MIN_REPEATED_CALLS: u64 = 5;

/// Durations of one script.
#[derive(Debug, Clone, Default)]
struct ScriptDurations {
    count: u64,
    /// Sum of all calls, us.
    total_us: u64,
    shortest_us: Option<u64>,
    longest_us: u64,
    long_calls_us: Vec<u64>,
}

/// Background task that reads the slow log until it is stopped.
pub(super) struct SlowlogMonitor {
    stop: Arc<Notify>,
    monitor_task: JoinHandle<BTreeMap<Vec<u8>, ScriptDurations>>,
    _control_loop: JoinSet<()>,
    control_hash: String,
}

impl SlowlogMonitor {
    pub(super) async fn start(fleet: &JobFleet) -> Self {
        for [name, value] in [["slowlog-log-slower-than", "0"], ["slowlog-max-len", "20000"]] {
            fleet
                .send_server_command(&["CONFIG", "SET", name, value])
                .await
                .expect("the server answers");
        }
        fleet.send_server_command(&["SLOWLOG", "RESET"]).await.expect("the server answers");
        let script = redis::Script::new(CONTROL_SCRIPT);
        let (control_hash, stop) = (script.get_hash().to_owned(), Arc::new(Notify::new()));
        let mut control_connection = fleet.server.connection().await;
        let mut control_tasks = JoinSet::new();
        control_tasks.spawn(async move {
            loop {
                let _: redis::RedisResult<u64> = script.invoke_async(&mut control_connection).await;
                tokio::time::sleep(CONTROL_PAUSE).await;
            }
        });
        let (stopped, connection) = (Arc::clone(&stop), fleet.server.connection().await);
        let monitor_task = tokio::spawn(collect_slowlog(connection, stopped));
        Self { stop, monitor_task, _control_loop: control_tasks, control_hash }
    }

    /// Expects that no script is long more often than the machine explains, nor in each of its
    /// calls. `frequent_scripts` lists scripts that must have been called often.
    pub(super) async fn assert_no_long_scripts(self, fleet: &JobFleet, frequent_scripts: &[&str]) {
        self.stop.notify_one();
        let durations = self.monitor_task.await.expect("it does not panic");
        let mut durations = group_by_hash(fleet, durations);
        let control = durations.remove(self.control_hash.as_bytes()).unwrap_or_default();
        assert!(control.count > 20, "nothing to compare with: {control:?}");
        let long_share = ratio(control.long_calls_us.len() as u64, control.total_us);
        let ScriptDurations { count, total_us, longest_us, long_calls_us, .. } = &control;
        println!("of {count} short calls, {total_us} us, long {long_calls_us:?}");
        println!("figure: longest call of a loop that is always as short {longest_us} us");
        assert!(
            durations.values().map(|durations| durations.count).sum::<u64>() > 100,
            "{durations:?}"
        );
        let (mut violations, mut frequently_called) = (Vec::new(), Vec::new());
        for (hash, durations) in durations {
            let (name, max_long_calls) =
                (fleet.script_name(&[b"EVALSHA", &hash]), durations.allowed_long_calls(long_share));
            let exceeds_always = durations.exceeds_limit_always(control.longest_us);
            let ScriptDurations { count, total_us, shortest_us, longest_us, long_calls_us } =
                durations;
            println!("figure: longest call of {name} {longest_us} us");
            let shortest_us = shortest_us.unwrap_or(0);
            let summary = format!(
                "{name}: {count} calls, {total_us} us, from {shortest_us} us, long {long_calls_us:?}, at most {max_long_calls}"
            );
            println!("{summary}");
            if exceeds_always || long_calls_us.len() as u64 > max_long_calls {
                violations.push(summary);
            }
            if count >= 2 * MIN_REPEATED_CALLS {
                frequently_called.push(name);
            }
        }
        assert!(violations.is_empty(), "{violations:#?}");
        let missing = frequent_scripts
            .iter()
            .find(|name| !frequently_called.iter().any(|called| called == *name));
        assert_eq!(missing, None, "a script was called too seldom: {frequently_called:?}");
    }
}

/// Groups calls by script hash. The first call of a script contains its text, which the log
/// truncates.
fn group_by_hash(
    fleet: &JobFleet,
    durations: BTreeMap<Vec<u8>, ScriptDurations>,
) -> BTreeMap<Vec<u8>, ScriptDurations> {
    let mut by_hash = BTreeMap::<_, ScriptDurations>::new();
    for (script, script_durations) in durations {
        let hash = fleet.script_hash(&script).map_or(script, String::into_bytes);
        by_hash.entry(hash).or_default().merge(script_durations);
    }
    by_hash
}

impl ScriptDurations {
    fn record_call(&mut self, duration_us: u64) {
        let long_calls_us = if duration_us > LONG_CALL_US { vec![duration_us] } else { Vec::new() };
        self.merge(Self {
            count: 1,
            total_us: duration_us,
            shortest_us: Some(duration_us),
            longest_us: duration_us,
            long_calls_us,
        });
    }

    fn merge(&mut self, other: Self) {
        (self.count, self.total_us) = (self.count + other.count, self.total_us + other.total_us);
        let shortest_us = self.shortest_us.into_iter().chain(other.shortest_us).min();
        (self.shortest_us, self.longest_us) = (shortest_us, self.longest_us.max(other.longest_us));
        self.long_calls_us.extend(other.long_calls_us);
    }

    /// Returns true if even the shortest call exceeded the limit. A few calls may each have met the
    /// machine's longest delay.
    fn exceeds_limit_always(&self, longest_control_us: u64) -> bool {
        let limit_us = if self.count < MIN_REPEATED_CALLS {
            LONG_CALL_US.max(longest_control_us)
        } else {
            LONG_CALL_US
        };
        self.shortest_us.is_some_and(|shortest| shortest > limit_us)
    }

    /// Returns the number of long calls that chance and the machine explain; at most a tenth of
    /// many calls.
    fn allowed_long_calls(&self, long_share: f64) -> u64 {
        let by_machine = (3.0 * long_share * to_f64(self.total_us)).min(to_f64(self.count));
        let expected_count = 3.0 + to_f64(self.count) / 200.0 + by_machine;
        let max_count = expected_count.min((to_f64(self.count) / 10.0).max(3.0));
        (0..self.count).take_while(|n| to_f64(*n) + 1.0 <= max_count).count() as u64
    }
}

fn to_f64(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

fn ratio(number: u64, of: u64) -> f64 {
    to_f64(number) / to_f64(of.max(1))
}

/// Number, time, duration in us, arguments, client address and client name.
type SlowlogRecord = (u64, u64, u64, Vec<Vec<u8>>, String, String);

async fn collect_slowlog(
    mut connection: MultiplexedConnection,
    stop: Arc<Notify>,
) -> BTreeMap<Vec<u8>, ScriptDurations> {
    let mut durations = BTreeMap::<Vec<u8>, ScriptDurations>::new();
    let mut last_number = None;
    loop {
        let ended = tokio::time::timeout(SLOWLOG_INTERVAL, stop.notified()).await.is_ok();
        let mut get = redis::cmd("SLOWLOG");
        let records = get.arg("GET").arg(20_000).query_async(&mut connection).await;
        let records: Vec<SlowlogRecord> = records.expect("the server answers");
        let newest_number = records.first().map(|call| call.0);
        for (number, _, duration_us, arguments, ..) in records {
            // Scripts are logged by hash, or by their truncated text.
            if last_number.is_some_and(|last_number| number <= last_number)
                || !arguments[0].starts_with(b"EVAL")
            {
                continue;
            }
            durations.entry(arguments[1].clone()).or_default().record_call(duration_us);
        }
        last_number = newest_number.or(last_number);
        if ended {
            return durations;
        }
        let mut reset = redis::cmd("SLOWLOG");
        let _: redis::RedisResult<()> = reset.arg("RESET").query_async(&mut connection).await;
    }
}
