//! Row 14: a hundred thousand on one resource, and very many due at once.
//!
//! They are stored with a call that a node has made: the same words, with other ids and other locks of the
//! same shard.

use std::{
    hash::Hasher as _,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use lockgate_tests::{
    Framework,
    ledger::{Fleet, Setup},
    proxy::{Moment, Rule},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{SECOND, fleet};

/// Beyond this a script keeps all others waiting.
const LONG: Duration = Duration::from_millis(5);

/// The resource that has many requests.
const FULL: &str = "100007";

struct Crowd {
    /// The call, as it was on the wire, and where in it stand the id, the name of the lock, and the path.
    call: Vec<u8>,
    at: [Vec<usize>; 3],
    /// Where the envelope begins and ends.
    envelope: Range<usize>,
    id: String,
    shard: u64,
    stored: AtomicU64,
}

fn shard_of(resource: &str) -> u64 {
    let mut hash = fnv::FnvHasher::default();
    hash.write(format!("p:id::{resource}").as_bytes());
    hash.finish() % 64
}

impl Crowd {
    /// The call with which this node defers a request.
    async fn of(fleet: &Fleet, web: usize) -> Self {
        let lock = fleet.hold(FULL).await;
        // The first one sends the script whole.
        fleet.later(web, FULL).accepted().await;
        let mut struck = fleet.proxy(web).strike(Rule::new("enqueue", Moment::After));
        let id = fleet.later(web, FULL).accepted().await;
        let call = struck.happened().await;
        lock.release().await;
        let shard = shard_of(FULL);
        let at = [id.clone(), format!(":p:id::{FULL}"), format!("/orders/{FULL}/")];
        let at = at.map(|text| places(&call, &text));
        let tag = format!("{{{shard}}}:h:p:id::{FULL}");
        assert!(!places(&call, &tag).is_empty(), "how keys are named, and shards counted");
        assert!(at.iter().all(|places| !places.is_empty()), "{}", call.escape_ascii());
        let envelope = argument_at(&call, at[2][0]);
        Self { call, at, envelope, id, shard, stored: AtomicU64::new(0) }
    }

    /// The same call for another resource, with another id, which begins with its shard.
    fn one(&self, resource: &str) -> Vec<u8> {
        let number = self.stored.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}{number:032x}", &self.id[..2]);
        let texts = [id.clone(), format!(":p:id::{resource}"), format!("/orders/{resource}/")];
        let mut call = self.call.clone();
        for (places, text) in self.at.iter().zip(texts) {
            for at in places {
                call[*at..at + text.len()].copy_from_slice(text.as_bytes());
            }
        }
        // Behind the version; of the kind, the id, the lock and what stands behind the check.
        let envelope = &mut call[self.envelope.clone()];
        let mut hash = Sha256::new();
        let lock = format!("p:id::{resource}");
        for part in [&b"request"[..], id.as_bytes(), lock.as_bytes(), &envelope[9..]] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        envelope[1..9].copy_from_slice(&hash.finalize()[..8]);
        call
    }

    async fn store<'a>(&self, fleet: &Fleet, resources: impl Iterator<Item = &'a str>) {
        let mut server =
            TcpStream::connect(("127.0.0.1", fleet.server.port())).await.expect("there");
        let resources: Vec<_> = resources.collect();
        for some in resources.chunks(500) {
            let calls: Vec<u8> = some.iter().flat_map(|resource| self.one(resource)).collect();
            server.write_all(&calls).await.expect("the server reads");
            let mut answer = Vec::new();
            while places(&answer, "stored").len() < some.len() {
                let read = server.read_buf(&mut answer).await.expect("the server answers");
                let refused = answer.starts_with(b"-") || !places(&answer, "full").is_empty();
                assert!(read > 0 && !refused, "{}", answer.escape_ascii());
            }
        }
    }
}

/// The argument of a call on the wire that this byte is part of.
fn argument_at(call: &[u8], at: usize) -> Range<usize> {
    let before = places(&call[..at], "\r\n$");
    let digits = before.last().expect("arguments have their lengths before them") + 3;
    let end = digits + places(&call[digits..], "\r\n")[0];
    let length: usize = std::str::from_utf8(&call[digits..end]).unwrap().parse().unwrap();
    end + 2..end + 2 + length
}

/// Where this text stands.
fn places(bytes: &[u8], text: &str) -> Vec<usize> {
    let all = bytes.windows(text.len()).enumerate();
    all.filter(|(_, part)| *part == text.as_bytes()).map(|(at, _)| at).collect()
}

/// Names of the same shard, all of one length.
fn names(shard: u64) -> impl Iterator<Item = String> {
    (100_000..).map(|n: u32| n.to_string()).filter(move |name| shard_of(name) == shard)
}

/// Number, when, how long in us, words, whose, and their name.
type SlowCall = (u64, u64, u64, Vec<Vec<u8>>, String, String);

/// How many script calls were made, and how many of them took too long.
async fn slow(fleet: &Fleet) -> (u64, Vec<u64>) {
    let mut connection = fleet.server.connection().await;
    let mut all = redis::cmd("SLOWLOG");
    let entries: Vec<SlowCall> =
        all.arg("GET").arg(1000).query_async(&mut connection).await.expect("the server answers");
    let scripts = entries.iter().filter(|entry| entry.3[0].starts_with(b"EVAL"));
    let slow = scripts.map(|entry| entry.2).collect();
    let mut stats = redis::cmd("INFO");
    let stats: String =
        stats.arg("commandstats").query_async(&mut connection).await.expect("the server answers");
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0);
    (calls, slow)
}

async fn watch_for_slow_scripts(fleet: &Fleet) {
    let long = LONG.as_micros().to_string();
    for words in [
        &["CONFIG", "SET", "slowlog-log-slower-than", &long][..],
        &["CONFIG", "SET", "slowlog-max-len", "1000"],
        &["CONFIG", "RESETSTAT"],
        &["SLOWLOG", "RESET"],
    ] {
        let _ = fleet.command(words).await.expect("the server answers");
    }
}

/// Not one script is long by itself. The server may be put aside by the machine in the middle of one, which
/// its log takes for a long one too: that is rare, and does not grow with the number of calls.
async fn no_script_was_long(fleet: &Fleet) {
    let (calls, slow) = slow(fleet).await;
    let few = 3 + usize::try_from(calls / 200).unwrap_or(0);
    println!("{calls} calls, longer than {LONG:?}: {slow:?} us");
    assert!(calls > 100 && slow.len() <= few, "of {calls} calls: {slow:?} us");
}

async fn runs(fleet: &Fleet, of: impl Fn(&str) -> bool) -> usize {
    fleet.runs().iter().filter(|run| of(&run.resource)).count()
}

#[tokio::test]
async fn a_hundred_thousand_on_one_resource_slow_nobody_down() {
    let mut fleet = fleet().await;
    let web = fleet.join(Setup::new(Framework::Axum).web_only()).await;
    let crowd = Crowd::of(&fleet, web).await;
    crowd.store(&fleet, std::iter::repeat_n(FULL, 100_000)).await;
    watch_for_slow_scripts(&fleet).await;
    let lock = fleet.hold(FULL).await;
    let last = fleet.later(web, FULL).accepted().await;
    assert_eq!(fleet.cancel(web, &last).await, 204);
    let _worker = fleet.join(Setup::new(Framework::Actix)).await;
    lock.release().await;
    fleet.started(&crowd.id).await;
    // Others of the same shard are not behind them.
    let others: Vec<_> = names(crowd.shard).filter(|name| name != FULL).take(20).collect();
    let before = runs(&fleet, |resource| resource == FULL).await;
    crowd.store(&fleet, others.iter().map(String::as_str)).await;
    let started = Instant::now();
    while runs(&fleet, |resource| resource != FULL).await < others.len() {
        assert!(started.elapsed() < 20 * SECOND, "others wait behind the crowd");
        tokio::time::sleep(SECOND / 50).await;
    }
    let meanwhile = runs(&fleet, |resource| resource == FULL).await - before;
    assert!(meanwhile < 5_000, "{meanwhile} of the crowd have run before {} others", others.len());
    while runs(&fleet, |resource| resource == FULL).await < 200 {
        assert!(started.elapsed() < 20 * SECOND, "the crowd does not move");
        tokio::time::sleep(SECOND / 50).await;
    }
    no_script_was_long(&fleet).await;
    fleet.leave();
}

#[tokio::test]
async fn thousands_due_at_once_are_taken_as_there_is_room() {
    const MANY: usize = 1_500;
    let mut fleet = fleet().await;
    let web = fleet.join(Setup::new(Framework::Actix).web_only()).await;
    let crowd = Crowd::of(&fleet, web).await;
    let due: Vec<_> = names(crowd.shard).take(MANY).collect();
    crowd.store(&fleet, due.iter().map(String::as_str)).await;
    watch_for_slow_scripts(&fleet).await;
    let _worker = fleet.join(Setup::new(Framework::Axum)).await;
    let started = Instant::now();
    while runs(&fleet, |_| true).await < MANY {
        assert!(started.elapsed() < 60 * SECOND, "{} have run", runs(&fleet, |_| true).await);
        tokio::time::sleep(SECOND / 10).await;
    }
    println!("{MANY} took {:?}", started.elapsed());
    no_script_was_long(&fleet).await;
    fleet.leave();
}
