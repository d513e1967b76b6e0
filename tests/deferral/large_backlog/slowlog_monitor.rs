//! `SlowlogMonitor`: how long scripts block the server, on a machine that does other work too.
//!
//! The slow log of the server measures a script by the clock, and the machine may suspend the server in
//! the middle of one. A reference script of constant cost is called all the while: the share of its
//! calls that are long measures the machine, and the other scripts are allowed the same share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockgate_tests::ledger::JobFleet;
use redis::aio::MultiplexedConnection;
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
};

/// Beyond this a script keeps all others waiting, us.
const LONG_CALL_US: u64 = 5_000;

/// One or two milliseconds of a quiet server: in all about as long as what it is compared with.
const CONTROL_SCRIPT: &str = "local n = 0 for i = 1, 100000 do n = n + i end return n";

/// Between two of those.
const CONTROL_PAUSE: Duration = Duration::from_millis(8);

/// Between two looks at the log: it does not run over meanwhile.
const SLOWLOG_INTERVAL: Duration = Duration::from_millis(100);

/// Of so many calls the machine has left one alone.
const MIN_REPEATED_CALLS: u64 = 5;

/// Of one script.
#[derive(Debug, Clone, Default)]
struct ScriptDurations {
    count: u64,
    /// All together, us.
    total_us: u64,
    shortest_us: Option<u64>,
    longest_us: u64,
    long_calls_us: Vec<u64>,
}

/// Looks on until it is asked.
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
        let (control, stop) = (script.get_hash().to_owned(), Arc::new(Notify::new()));
        let mut beside = fleet.server.connection().await;
        let mut all = JoinSet::new();
        all.spawn(async move {
            loop {
                let _: redis::RedisResult<u64> = script.invoke_async(&mut beside).await;
                tokio::time::sleep(CONTROL_PAUSE).await;
            }
        });
        let (stopped, connection) = (Arc::clone(&stop), fleet.server.connection().await);
        let calls = tokio::spawn(collect_slowlog(connection, stopped));
        Self { stop, monitor_task: calls, _control_loop: all, control_hash: control }
    }

    /// No script was long more often than the machine makes one, and none in each of its calls. These were called often.
    pub(super) async fn assert_no_long_scripts(self, fleet: &JobFleet, often: &[&str]) {
        self.stop.notify_one();
        let calls = self.monitor_task.await.expect("it does not panic");
        let mut calls = group_by_hash(fleet, calls);
        let control = calls.remove(self.control_hash.as_bytes()).unwrap_or_default();
        assert!(control.count > 20, "nothing to compare with: {control:?}");
        let chance = ratio(control.long_calls_us.len() as u64, control.total_us);
        let ScriptDurations {
            count: number,
            total_us: took,
            longest_us: longest,
            long_calls_us: long,
            ..
        } = &control;
        println!("of {number} short calls, {took} us, long {long:?}");
        println!("figure: longest call of a loop that is always as short {longest} us");
        assert!(calls.values().map(|calls| calls.count).sum::<u64>() > 100, "{calls:?}");
        let (mut wrong, mut seen) = (Vec::new(), Vec::new());
        for (hash, calls) in calls {
            let (name, most) =
                (fleet.script_name(&[b"EVALSHA", &hash]), calls.allowed_long_calls(chance));
            let always = calls.exceeds_limit_always(control.longest_us);
            let ScriptDurations {
                count: number,
                total_us: took,
                shortest_us: shortest,
                longest_us: longest,
                long_calls_us: long,
            } = calls;
            println!("figure: longest call of {name} {longest} us");
            let shortest = shortest.unwrap_or(0);
            let told = format!(
                "{name}: {number} calls, {took} us, from {shortest} us, long {long:?}, at most {most}"
            );
            println!("{told}");
            if always || long.len() as u64 > most {
                wrong.push(told);
            }
            if number >= 2 * MIN_REPEATED_CALLS {
                seen.push(name);
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        let unseen = often.iter().find(|name| !seen.iter().any(|seen| seen == *name));
        assert_eq!(unseen, None, "it was not looked at often: {seen:?}");
    }
}

/// The first call of a script sends its text, of which the log does not tell all.
fn group_by_hash(
    fleet: &JobFleet,
    all: BTreeMap<Vec<u8>, ScriptDurations>,
) -> BTreeMap<Vec<u8>, ScriptDurations> {
    let mut by_hash = BTreeMap::<_, ScriptDurations>::new();
    for (told, calls) in all {
        let hash = fleet.script_hash(&told).map_or(told, String::into_bytes);
        by_hash.entry(hash).or_default().merge(calls);
    }
    by_hash
}

impl ScriptDurations {
    fn record_call(&mut self, took: u64) {
        let long = if took > LONG_CALL_US { vec![took] } else { Vec::new() };
        self.merge(Self {
            count: 1,
            total_us: took,
            shortest_us: Some(took),
            longest_us: took,
            long_calls_us: long,
        });
    }

    fn merge(&mut self, other: Self) {
        (self.count, self.total_us) = (self.count + other.count, self.total_us + other.total_us);
        let least = self.shortest_us.into_iter().chain(other.shortest_us).min();
        (self.shortest_us, self.longest_us) = (least, self.longest_us.max(other.longest_us));
        self.long_calls_us.extend(other.long_calls_us);
    }

    /// The machine may have met each of a few, for as long as it has the loop that is always as short.
    fn exceeds_limit_always(&self, by_machine: u64) -> bool {
        let most = if self.count < MIN_REPEATED_CALLS {
            LONG_CALL_US.max(by_machine)
        } else {
            LONG_CALL_US
        };
        self.shortest_us.is_some_and(|shortest| shortest > most)
    }

    /// A few by chance, and as many as the machine makes long; but never one of ten, however busy it is.
    fn allowed_long_calls(&self, chance: f64) -> u64 {
        let by_machine = (3.0 * chance * to_f64(self.total_us)).min(to_f64(self.count));
        let all = 3.0 + to_f64(self.count) / 200.0 + by_machine;
        let most = all.min((to_f64(self.count) / 10.0).max(3.0));
        (0..self.count).take_while(|n| to_f64(*n) + 1.0 <= most).count() as u64
    }
}

fn to_f64(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

fn ratio(number: u64, of: u64) -> f64 {
    to_f64(number) / to_f64(of.max(1))
}

/// Number, when, how long in us, words, whose, and their name.
type SlowlogRecord = (u64, u64, u64, Vec<Vec<u8>>, String, String);

async fn collect_slowlog(
    mut connection: MultiplexedConnection,
    stop: Arc<Notify>,
) -> BTreeMap<Vec<u8>, ScriptDurations> {
    let mut all = BTreeMap::<Vec<u8>, ScriptDurations>::new();
    let mut last = None;
    loop {
        let ended = tokio::time::timeout(SLOWLOG_INTERVAL, stop.notified()).await.is_ok();
        let mut get = redis::cmd("SLOWLOG");
        let got = get.arg("GET").arg(20_000).query_async(&mut connection).await;
        let got: Vec<SlowlogRecord> = got.expect("the server answers");
        let newest = got.first().map(|call| call.0);
        for (number, _, took, words, ..) in got {
            // By its hash, or by its text, as far as that is told.
            if last.is_some_and(|last| number <= last) || !words[0].starts_with(b"EVAL") {
                continue;
            }
            all.entry(words[1].clone()).or_default().record_call(took);
        }
        last = newest.or(last);
        if ended {
            return all;
        }
        let mut reset = redis::cmd("SLOWLOG");
        let _: redis::RedisResult<()> = reset.arg("RESET").query_async(&mut connection).await;
    }
}
