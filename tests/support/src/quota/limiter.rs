//! A process that asks for quota all the time, and writes down what it was told.

use std::{sync::Arc, time::Duration};

use lockgate::{RateLimiter, Store};
use tokio::runtime::Handle;

use super::{After, Asked, epoch, fill::fill, policies, settled::Settled};
use crate::{
    checker::quota::QuotaEvent,
    fleet::{
        Job, clock,
        dice::Dice,
        log::Log,
        orders::{self, Orders},
    },
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
pub async fn limiter(job: Job) {
    let store = Store::connect(&job.url).await.expect("the URL is right");
    let log = Arc::new(Log::open(&job.log).expect("the log can be made"));
    let (runtime, fills) = (Handle::current(), store.clone());
    let orders = Orders::follow(move |word| {
        if word == "fill" {
            runtime.spawn(fill(fills.clone()));
        }
    });
    let notes = Arc::clone(&log);
    tokio::spawn(stalls::watch(move |since, _| notes.note(&QuotaEvent::Stalled(since))));
    let mut dice = Dice::new(job.seed);
    let mut tasks = Vec::new();
    for asked in policies().into_iter().map(Arc::new) {
        let way = Way::new(&store, &asked);
        for _ in 0..TASKS {
            let (way, log, mut dice) = (way.clone(), Arc::clone(&log), Dice::new(dice.roll()));
            let (orders, asked) = (Arc::clone(&orders), Arc::clone(&asked));
            let who = tasks.len() as u64;
            tasks.push(tokio::spawn(async move {
                while orders.go_on().await {
                    way.ask(who, &asked, &mut dice, &log).await;
                    tokio::time::sleep(dice.ms(5, 40)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    orders::quiet(store.shutdown(Duration::from_secs(10)).await).await;
}

/// How quota is asked for.
#[derive(Debug, Clone)]
enum Way {
    Limiter(RateLimiter),
    Layer(Settled),
}

impl Way {
    fn new(store: &Store, asked: &Asked) -> Self {
        let mut policies = asked.policies.iter().cloned();
        let first = policies.next().expect("there is one");
        match asked.after {
            After::Stays => {
                Self::Limiter(policies.fold(store.rate_limiter(first), RateLimiter::and))
            }
            after => Self::Layer(Settled::new(store, &first, after)),
        }
    }

    async fn ask(&self, who: u64, asked: &Asked, dice: &mut Dice, log: &Log) {
        let name = asked.name_in(epoch());
        log.note(&QuotaEvent::Requested(who, name.clone()));
        match self {
            Self::Limiter(limit) => log.note(&check(limit, who, name, dice).await),
            Self::Layer(settled) => {
                settled.ask(who, name, dice, log).await;
                settled.look_now_and_then(who, asked, dice, log).await;
            }
        }
    }
}

async fn check(limit: &RateLimiter, who: u64, name: String, dice: &mut Dice) -> QuotaEvent {
    let (sent, second) = (clock::now(), dice.below(SECOND_KEYS));
    // More than there are policies are left out.
    let keys = [name.clone(), format!("{name}, {second}")];
    match limit.check_each(keys.map(|key| (key, 1))).await {
        Ok(decision) if !decision.is_admitted() => QuotaEvent::Refused(who, name),
        Ok(decision) if decision.is_local() => QuotaEvent::AdmittedLocally(who, name, sent, 1),
        Ok(_) => QuotaEvent::Admitted(who, name, sent, 1),
        Err(_) => QuotaEvent::Failed(who, name),
    }
}
