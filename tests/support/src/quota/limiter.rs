//! A process that asks for quota all the time, and writes down what it was told.

use std::{
    io::BufRead as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockgate::{RateLimit, Store};
use lockgate_history::quota::Event;
use tokio::runtime::Handle;

use super::{After, Asked, epoch, fill::fill, policies, settled::Settled};
use crate::{
    gauge,
    history::{clock, dice::Dice, log::Log},
    stalls,
};

/// Tasks for each key.
pub(super) const TASKS: usize = 3;

/// Second keys of those that are asked for by two.
const SECOND_KEYS: u64 = 64;

/// Until it is told to `stop`, or its input ends.
///
/// # Panics
///
/// If the URL is wrong or the log can't be written.
pub async fn limiter(url: &str, log: &Path, seed: u64) {
    let store = Store::connect(url).await.expect("the URL is right");
    let log = Arc::new(Log::open(log).expect("the log can be made"));
    let (rests, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (runtime, its, ends) = (Handle::current(), Arc::clone(&rests), Arc::clone(&stop));
    let fills = store.clone();
    // A thread of its own: the end of the input is the end of the process, whatever its runtime does.
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match line.as_str() {
                "rest" => its.store(true, Ordering::Relaxed),
                "go" => its.store(false, Ordering::Relaxed),
                "gauge" => gauge::tell(&runtime),
                "fill" => _ = runtime.spawn(fill(fills.clone())),
                _ => ends.store(true, Ordering::Relaxed),
            }
        }
        std::process::exit(0);
    });
    let notes = Arc::clone(&log);
    tokio::spawn(stalls::watch(move |since, _| notes.note(&Event::Stall(since))));
    let mut dice = Dice::new(seed);
    let mut tasks = Vec::new();
    for asked in policies().into_iter().map(Arc::new) {
        let way = Way::new(&store, &asked);
        for _ in 0..TASKS {
            let (way, log, mut dice) = (way.clone(), Arc::clone(&log), Dice::new(dice.roll()));
            let (rests, stop) = (Arc::clone(&rests), Arc::clone(&stop));
            let asked = Arc::clone(&asked);
            let who = tasks.len() as u64;
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if !rests.load(Ordering::Relaxed) {
                        way.ask(who, &asked, &mut dice, &log).await;
                    }
                    tokio::time::sleep(dice.ms(5, 40)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    let clean = store.shutdown(Duration::from_secs(10)).await;
    println!("quiet {clean}");
    std::future::pending::<()>().await;
}

/// How quota is asked for.
#[derive(Debug, Clone)]
enum Way {
    Limiter(RateLimit),
    Layer(Settled),
}

impl Way {
    fn new(store: &Store, asked: &Asked) -> Self {
        let mut policies = asked.policies.iter().cloned();
        let first = policies.next().expect("there is one");
        match asked.after {
            After::Stays => Self::Limiter(policies.fold(store.rate_limit(first), RateLimit::and)),
            after => Self::Layer(Settled::new(store, &first, after)),
        }
    }

    async fn ask(&self, who: u64, asked: &Asked, dice: &mut Dice, log: &Log) {
        let name = asked.name_in(epoch());
        log.note(&Event::Ask(who, name.clone()));
        match self {
            Self::Limiter(limit) => log.note(&check(limit, who, name, dice).await),
            Self::Layer(settled) => {
                settled.ask(who, name, dice, log).await;
                settled.look_now_and_then(who, asked, dice, log).await;
            }
        }
    }
}

async fn check(limit: &RateLimit, who: u64, name: String, dice: &mut Dice) -> Event {
    let (sent, second) = (clock::now(), dice.below(SECOND_KEYS));
    // More than there are policies are left out.
    let keys = [name.clone(), format!("{name}, {second}")];
    match limit.check_each(keys.map(|key| (key, 1))).await {
        Ok(decision) if !decision.is_admitted() => Event::Out(who, name),
        Ok(decision) if decision.is_local() => Event::Local(who, name, sent, 1),
        Ok(_) => Event::In(who, name, sent, 1),
        Err(_) => Event::Fault(who, name),
    }
}
