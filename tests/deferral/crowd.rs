//! Row 14: a hundred thousand on one resource, and very many due at once.
//!
//! They are stored with a call that a node has made: the same words, with other ids and other locks of the
//! same shard.

use std::{
    hash::Hasher as _,
    time::{Duration, Instant},
};

use lockgate_tests::{
    Framework,
    ledger::{Fleet, Setup},
    proxy::{Moment, Rule, words},
};

use super::{SECOND, fleet};

/// Beyond this a script keeps all others waiting.
const LONG: Duration = Duration::from_millis(5);

/// The resource that has many requests.
const FULL: &str = "100007";

struct Crowd {
    words: Vec<Vec<u8>>,
    id: String,
    shard: u64,
    resource: String,
}

fn shard_of(resource: &str) -> u64 {
    let mut hash = fnv::FnvHasher::default();
    hash.write(format!("p:id::{resource}").as_bytes());
    hash.finish() % 64
}

impl Crowd {
    /// The call with which this node defers a request.
    async fn of(fleet: &Fleet, web: usize, resource: &str) -> Self {
        let lock = fleet.hold(resource).await;
        let mut struck = fleet.proxy(web).strike(Rule::new("enqueue", Moment::After));
        let id = fleet.later(web, resource).accepted().await;
        let words = words(&struck.happened().await);
        lock.release().await;
        let shard = shard_of(resource);
        let tag = format!("{{{shard}}}:h:p:id::{resource}");
        let tagged = words.iter().filter(|word| word.ends_with(tag.as_bytes())).count();
        assert_eq!(tagged, 1, "how keys are named, and shards counted");
        Self { words, id, shard, resource: resource.to_owned() }
    }

    fn one(&self, resource: &str) -> Vec<Vec<u8>> {
        // It begins with its shard.
        let (shard, random) = (&self.id[..2], uuid::Uuid::new_v4().simple());
        let id = format!("{shard}{random}");
        // Of one length: the request says how long its path is.
        assert_eq!(self.resource.len(), resource.len());
        let key = |resource: &str| format!(":p:id::{resource}");
        let path = |resource: &str| format!("/orders/{resource}/");
        let mut words = self.words.clone();
        for word in &mut words {
            replace(word, &self.id, &id);
            replace(word, &key(&self.resource), &key(resource));
            replace(word, &path(&self.resource), &path(resource));
        }
        words
    }

    async fn store(&self, fleet: &Fleet, resources: impl Iterator<Item = String>) {
        let mut connection = fleet.server.connection().await;
        let resources: Vec<_> = resources.collect();
        for some in resources.chunks(500) {
            let mut pipe = redis::pipe();
            for resource in some {
                let words = self.one(resource);
                let mut call = redis::Cmd::new();
                call.arg(&words);
                pipe.add_command(call);
            }
            let stored: Vec<redis::Value> =
                pipe.query_async(&mut connection).await.expect("stored");
            let other = stored.iter().find(|reply| !format!("{reply:?}").contains("stored"));
            assert!(other.is_none(), "{other:?}");
        }
    }
}

/// What is as long.
fn replace(word: &mut [u8], old: &str, new: &str) {
    for at in 0..(word.len() + 1).saturating_sub(old.len()) {
        if word[at..].starts_with(old.as_bytes()) {
            word[at..at + old.len()].copy_from_slice(new.as_bytes());
        }
    }
}

/// Names of the same shard, all of one length.
fn names(shard: u64) -> impl Iterator<Item = String> {
    (100_000..).map(|n: u32| n.to_string()).filter(move |name| shard_of(name) == shard)
}

/// How many script calls were made, and how many of them took too long.
async fn slow(fleet: &Fleet) -> (u64, Vec<u64>) {
    let mut connection = fleet.server.connection().await;
    let mut all = redis::cmd("SLOWLOG");
    let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        all.arg("GET").arg(1000).query_async(&mut connection).await.expect("the server answers");
    let scripts = entries.iter().filter(|entry| entry.3[0].starts_with("EVAL"));
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
    let crowd = Crowd::of(&fleet, web, FULL).await;
    crowd.store(&fleet, (0..100_000).map(|_| FULL.to_owned())).await;
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
    crowd.store(&fleet, others.clone().into_iter()).await;
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
}

#[tokio::test]
async fn thousands_due_at_once_are_taken_as_there_is_room() {
    const MANY: usize = 1_500;
    let mut fleet = fleet().await;
    let web = fleet.join(Setup::new(Framework::Actix).web_only()).await;
    let crowd = Crowd::of(&fleet, web, FULL).await;
    let due: Vec<_> = names(crowd.shard).take(MANY).collect();
    crowd.store(&fleet, due.iter().cloned()).await;
    watch_for_slow_scripts(&fleet).await;
    let _worker = fleet.join(Setup::new(Framework::Axum)).await;
    let started = Instant::now();
    while runs(&fleet, |_| true).await < MANY {
        assert!(started.elapsed() < 60 * SECOND, "{} have run", runs(&fleet, |_| true).await);
        tokio::time::sleep(SECOND / 10).await;
    }
    println!("{MANY} took {:?}", started.elapsed());
    no_script_was_long(&fleet).await;
}
