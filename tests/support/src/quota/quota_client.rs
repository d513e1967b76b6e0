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

/// Number of second keys of the quota with two keys.
const SECOND_KEY_COUNT: u64 = 64;

/// Charges quotas until the command `stop` or the end of its input.
///
/// # Panics
///
/// If the URL is invalid or the log cannot be written.
pub async fn run_quota_client(args: ProcessArgs) {
    let store = Store::connect(&args.url).await.expect("the URL is right");
    let log = Arc::new(EventLog::open(&args.log_path).expect("the log can be made"));
    let (runtime, fill_store) = (Handle::current(), store.clone());
    let control = ProcessControl::from_stdin(move |command| {
        if command == "fill" {
            runtime.spawn(fill_counter_maps(fill_store.clone()));
        }
    });
    let stall_log = Arc::clone(&log);
    tokio::spawn(stalls::report_process_stalls(move |since, _| {
        stall_log.record(&QuotaEvent::Stalled { since });
    }));
    let mut rng = SeededRng::new(args.seed);
    let mut tasks = Vec::new();
    for quota in tested_quotas().into_iter().map(Arc::new) {
        let quota_client = QuotaClient::new(&store, &quota);
        for _ in 0..TASKS_PER_KEY {
            let (quota_client, log, mut rng) =
                (quota_client.clone(), Arc::clone(&log), SeededRng::new(rng.next_u64()));
            let (control, quota) = (Arc::clone(&control), Arc::clone(&quota));
            let client = tasks.len() as u64;
            tasks.push(tokio::spawn(async move {
                while control.wait_to_continue().await {
                    quota_client.request_quota(client, &quota, &mut rng, &log).await;
                    tokio::time::sleep(rng.duration_between_ms(5, 40)).await;
                }
            }));
        }
    }
    for task in tasks {
        task.await.expect("no task panics");
    }
    process_control::report_idle_and_wait(store.shutdown(Duration::from_secs(10)).await).await;
}

/// Kind of charge: by a limiter or through a layer.
#[derive(Debug, Clone)]
enum QuotaClient {
    Limiter(RateLimiter),
    Layer(LayeredQuotaClient),
}

impl QuotaClient {
    fn new(store: &Store, quota: &TestedQuota) -> Self {
        let mut policies = quota.policies.iter().cloned();
        let first = policies.next().expect("there is one");
        match quota.adjustment {
            ResponseAdjustment::Unchanged => {
                Self::Limiter(policies.fold(store.rate_limiter(first), RateLimiter::and))
            }
            adjustment => Self::Layer(LayeredQuotaClient::new(store, &first, adjustment)),
        }
    }

    async fn request_quota(
        &self,
        client: u64,
        quota: &TestedQuota,
        rng: &mut SeededRng,
        log: &EventLog,
    ) {
        let name = quota.name_in_epoch(current_epoch());
        log.record(&QuotaEvent::Requested { client, key: name.clone() });
        match self {
            Self::Limiter(limiter) => {
                log.record(&check_both_keys(limiter, client, name, rng).await);
            }
            Self::Layer(layered_client) => {
                layered_client.send_request(client, name, rng, log).await;
                layered_client.sample_spent_units(client, quota, rng, log).await;
            }
        }
    }
}

async fn check_both_keys(
    limiter: &RateLimiter,
    client: u64,
    name: String,
    rng: &mut SeededRng,
) -> QuotaEvent {
    let (sent, second_key) = (clock::now_ns(), rng.below(SECOND_KEY_COUNT));
    // Keys beyond the number of policies are ignored.
    let keys = [name.clone(), format!("{name}, {second_key}")];
    match limiter.check_each(keys.map(|key| (key, 1))).await {
        Ok(decision) if !decision.is_admitted() => QuotaEvent::Refused { client, key: name },
        Ok(decision) if decision.is_local() => {
            QuotaEvent::AdmittedLocally { client, key: name, sent_at: sent, cost: 1 }
        }
        Ok(_) => QuotaEvent::Admitted { client, key: name, sent_at: sent, cost: 1 },
        Err(_) => QuotaEvent::Failed { client, key: name },
    }
}
