//! How long scripts keep the server, on a machine that has other things to do.
//!
//! The server's log tells how long a script took by the clock, and the machine may put the server aside in the middle
//! of one. A script of our own, which is always as short, is called all the while: how many of its calls are long, for
//! the time that it takes in all, is what the machine does, and other scripts are allowed as much for theirs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockgate_tests::ledger::Fleet;
use redis::aio::MultiplexedConnection;
use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
};

/// Beyond this a script keeps all others waiting, us.
const LONG: u64 = 5_000;

/// One or two milliseconds of a quiet server: in all about as long as what it is compared with.
const CONTROL: &str = "local n = 0 for i = 1, 100000 do n = n + i end return n";

/// Between two of those.
const PAUSE: Duration = Duration::from_millis(8);

/// Between two looks at the log: it does not run over meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Of so many calls the machine has left one alone.
const OFTEN: u64 = 5;

/// Of one script.
#[derive(Debug, Clone, Default)]
struct Calls {
    number: u64,
    /// All together, us.
    took: u64,
    shortest: Option<u64>,
    longest: u64,
    long: Vec<u64>,
}

/// Looks on until it is asked.
pub(super) struct Watch {
    stop: Arc<Notify>,
    calls: JoinHandle<BTreeMap<Vec<u8>, Calls>>,
    _control: JoinSet<()>,
    control: String,
}

impl Watch {
    pub(super) async fn on(fleet: &Fleet) -> Self {
        for [name, value] in [["slowlog-log-slower-than", "0"], ["slowlog-max-len", "20000"]] {
            fleet.command(&["CONFIG", "SET", name, value]).await.expect("the server answers");
        }
        fleet.command(&["SLOWLOG", "RESET"]).await.expect("the server answers");
        let script = redis::Script::new(CONTROL);
        let (control, stop) = (script.get_hash().to_owned(), Arc::new(Notify::new()));
        let mut beside = fleet.server.connection().await;
        let mut all = JoinSet::new();
        all.spawn(async move {
            loop {
                let _: redis::RedisResult<u64> = script.invoke_async(&mut beside).await;
                tokio::time::sleep(PAUSE).await;
            }
        });
        let (stopped, connection) = (Arc::clone(&stop), fleet.server.connection().await);
        let calls = tokio::spawn(look_on(connection, stopped));
        Self { stop, calls, _control: all, control }
    }

    /// No script was long more often than the machine makes one, and none in each of its calls. These were called often.
    pub(super) async fn none_was_long(self, fleet: &Fleet, often: &[&str]) {
        self.stop.notify_one();
        let calls = self.calls.await.expect("it does not panic");
        let mut calls = by_hash(fleet, calls);
        let control = calls.remove(self.control.as_bytes()).unwrap_or_default();
        assert!(control.number > 20, "nothing to compare with: {control:?}");
        let chance = ratio(control.long.len() as u64, control.took);
        let Calls { number, took, longest, long, .. } = &control;
        println!("of {number} short calls, {took} us, long {long:?}");
        println!("figure: longest call of a loop that is always as short {longest} us");
        assert!(calls.values().map(|calls| calls.number).sum::<u64>() > 100, "{calls:?}");
        let (mut wrong, mut seen) = (Vec::new(), Vec::new());
        for (hash, calls) in calls {
            let (name, most) = (fleet.script(&[b"EVALSHA", &hash]), calls.may_be_long(chance));
            let always = calls.is_always_long(control.longest);
            let Calls { number, took, shortest, longest, long } = calls;
            println!("figure: longest call of {name} {longest} us");
            let shortest = shortest.unwrap_or(0);
            let told = format!(
                "{name}: {number} calls, {took} us, from {shortest} us, long {long:?}, at most {most}"
            );
            println!("{told}");
            if always || long.len() as u64 > most {
                wrong.push(told);
            }
            if number >= 2 * OFTEN {
                seen.push(name);
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        let unseen = often.iter().find(|name| !seen.iter().any(|seen| seen == *name));
        assert_eq!(unseen, None, "it was not looked at often: {seen:?}");
    }
}

/// The first call of a script sends its text, of which the log does not tell all.
fn by_hash(fleet: &Fleet, all: BTreeMap<Vec<u8>, Calls>) -> BTreeMap<Vec<u8>, Calls> {
    let mut by_hash = BTreeMap::<_, Calls>::new();
    for (told, calls) in all {
        let hash = fleet.hash_of(&told).map_or(told, String::into_bytes);
        by_hash.entry(hash).or_default().and(calls);
    }
    by_hash
}

impl Calls {
    fn add(&mut self, took: u64) {
        let long = if took > LONG { vec![took] } else { Vec::new() };
        self.and(Self { number: 1, took, shortest: Some(took), longest: took, long });
    }

    fn and(&mut self, other: Self) {
        (self.number, self.took) = (self.number + other.number, self.took + other.took);
        let least = self.shortest.into_iter().chain(other.shortest).min();
        (self.shortest, self.longest) = (least, self.longest.max(other.longest));
        self.long.extend(other.long);
    }

    /// The machine may have met each of a few, for as long as it has the loop that is always as short.
    fn is_always_long(&self, by_machine: u64) -> bool {
        let most = if self.number < OFTEN { LONG.max(by_machine) } else { LONG };
        self.shortest.is_some_and(|shortest| shortest > most)
    }

    /// A few by chance, and as many as the machine makes long; but never one of ten, however busy it is.
    fn may_be_long(&self, chance: f64) -> u64 {
        let by_machine = (3.0 * chance * whole(self.took)).min(whole(self.number));
        let all = 3.0 + whole(self.number) / 200.0 + by_machine;
        let most = all.min((whole(self.number) / 10.0).max(3.0));
        (0..self.number).take_while(|n| whole(*n) + 1.0 <= most).count() as u64
    }
}

fn whole(number: u64) -> f64 {
    u32::try_from(number).map_or(f64::MAX, f64::from)
}

fn ratio(number: u64, of: u64) -> f64 {
    whole(number) / whole(of.max(1))
}

/// Number, when, how long in us, words, whose, and their name.
type Call = (u64, u64, u64, Vec<Vec<u8>>, String, String);

async fn look_on(
    mut connection: MultiplexedConnection,
    stop: Arc<Notify>,
) -> BTreeMap<Vec<u8>, Calls> {
    let mut all = BTreeMap::<Vec<u8>, Calls>::new();
    let mut last = None;
    loop {
        let ended = tokio::time::timeout(LOOK, stop.notified()).await.is_ok();
        let mut get = redis::cmd("SLOWLOG");
        let got = get.arg("GET").arg(20_000).query_async(&mut connection).await;
        let got: Vec<Call> = got.expect("the server answers");
        let newest = got.first().map(|call| call.0);
        for (number, _, took, words, ..) in got {
            // By its hash, or by its text, as far as that is told.
            if last.is_some_and(|last| number <= last) || !words[0].starts_with(b"EVAL") {
                continue;
            }
            all.entry(words[1].clone()).or_default().add(took);
        }
        last = newest.or(last);
        if ended {
            return all;
        }
        let mut reset = redis::cmd("SLOWLOG");
        let _: redis::RedisResult<()> = reset.arg("RESET").query_async(&mut connection).await;
    }
}
