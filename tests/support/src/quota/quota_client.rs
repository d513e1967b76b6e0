//! Process that charges quotas continuously, and records the decisions.

use std::{sync::Arc, time::Duration};

use lockgate::{RateLimiter, Store};
use tokio::runtime::Handle;

use super::{
    ResponseAdjustment, TestedQuota, counter_map_fill::fill_counter_maps, current_epoch,
    layered_quota_client::LayeredQuotaClient, tested_quotas,
};
use crate::{
    checker::quota::QuotaEvent,
    fleet::{
        ProcessArgs, clock,
        event_log::EventLog,
        process_control::{self, ProcessControl},
        seeded_rng::SeededRng,
    },
    stalls,
};

/// Tasks for each key.
pub(super) const TASKS_PER_KEY: usize = 3;

/// Second keys of those that are asked for by two.
const SECOND_KEY_COUNT: u64 = 64;

/// Until it is told to `stop`, or its input ends.
///
/// # Panics
///
/// If the URL is wrong or the log can't be written.
pub async fn run_quota_client(job: ProcessArgs) {
    let store = Store::connect(&job.url).await.expect("the URL is right");
    let log = Arc::new(EventLog::open(&job.log_path).expect("the log can be made"));
    let (runtime, fills) = (Handle::current(), store.clone());
    let orders = ProcessControl::from_stdin(move |word| {
        if word == "fill" {
            runtime.spawn(fill_counter_maps(fills.clone()));
        }
    });
    let notes = Arc::clone(&log);
    tokio::spawn(stalls::report_process_stalls(move |since, _| {
        notes.record(&QuotaEvent::Stalled { since });
    }));
    let mut dice = SeededRng::new(job.seed);
    let mut tasks = Vec::new();
    for asked in tested_quotas().into_iter().map(Arc::new) {
        let way = QuotaClient::new(&store, &asked);
        for _ in 0..TASKS_PER_KEY {
            let (way, log, mut dice) =
                (way.clone(), Arc::clone(&log), SeededRng::new(dice.next_u64()));
            let (orders, asked) = (Arc::clone(&orders), Arc::clone(&asked));
            let who = tasks.len() as u64;
            tasks.push(tokio::spawn(async move {
                while orders.wait_to_continue().await {
                    way.request_quota(who, &asked, &mut dice, &log).await;
                    tokio::time::sleep(dice.duration_between_ms(5, 40)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    process_control::report_idle_and_wait(store.shutdown(Duration::from_secs(10)).await).await;
}

/// How quota is asked for.
#[derive(Debug, Clone)]
enum QuotaClient {
    Limiter(RateLimiter),
    Layer(LayeredQuotaClient),
}

impl QuotaClient {
    fn new(store: &Store, asked: &TestedQuota) -> Self {
        let mut policies = asked.policies.iter().cloned();
        let first = policies.next().expect("there is one");
        match asked.adjustment {
            ResponseAdjustment::Unchanged => {
                Self::Limiter(policies.fold(store.rate_limiter(first), RateLimiter::and))
            }
            after => Self::Layer(LayeredQuotaClient::new(store, &first, after)),
        }
    }

    async fn request_quota(
        &self,
        who: u64,
        asked: &TestedQuota,
        dice: &mut SeededRng,
        log: &EventLog,
    ) {
        let name = asked.name_in_epoch(current_epoch());
        log.record(&QuotaEvent::Requested { client: who, key: name.clone() });
        match self {
            Self::Limiter(limit) => log.record(&check_both_keys(limit, who, name, dice).await),
            Self::Layer(settled) => {
                settled.send_request(who, name, dice, log).await;
                settled.sample_spent_units(who, asked, dice, log).await;
            }
        }
    }
}

async fn check_both_keys(
    limit: &RateLimiter,
    who: u64,
    name: String,
    dice: &mut SeededRng,
) -> QuotaEvent {
    let (sent, second) = (clock::now_ns(), dice.below(SECOND_KEY_COUNT));
    // More than there are policies are left out.
    let keys = [name.clone(), format!("{name}, {second}")];
    match limit.check_each(keys.map(|key| (key, 1))).await {
        Ok(decision) if !decision.is_admitted() => QuotaEvent::Refused { client: who, key: name },
        Ok(decision) if decision.is_local() => {
            QuotaEvent::AdmittedLocally { client: who, key: name, sent_at: sent, cost: 1 }
        }
        Ok(_) => QuotaEvent::Admitted { client: who, key: name, sent_at: sent, cost: 1 },
        Err(_) => QuotaEvent::Failed { client: who, key: name },
    }
}
