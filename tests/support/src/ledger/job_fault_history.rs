//! The history of deferred requests under random faults: its faults, clients and figures.

use std::time::Duration;

use super::{
    deferrable_request::RecordingClient,
    job_domain::{JobDomain, NodeAddrs},
    node::NodeSetup,
};
use crate::{
    checker::{Guarantee, ProcessIncarnation, Violation, deferred::DeferredCheckStats},
    fleet::{
        ChildProcess, ClosingChecks, DomainRules, FleetDomain, HistoryPlan, HistoryReport,
        InjectedFault::{self, *},
        LEASE_GRACE_PERIOD, ProcessFleet, SOAK_FAULT_WEIGHTS,
        clock::NS_PER_MS,
        process_control::ProcessControl,
        seeded_rng::SeededRng,
    },
    proxy::FaultProxy,
    redis_server::RedisServer,
    site::WebFramework,
    wait::with_timeout,
};

/// Concurrent clients with one request at a time, two for each resource.
const CLIENT_COUNT: usize = 12;
const RESOURCE_COUNT: u64 = 6;

/// Longest response time: requests give up waiting for a lock after ten seconds; the rest allows
/// for a loaded machine.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(16);

/// Runs of this duration have periods without faults, and this percentage of their runs must be
/// undisturbed by faults.
const LONG_RUN: Duration = Duration::from_secs(40);
const MIN_UNFAULTED_PERCENT: usize = 10;

impl FleetDomain for JobDomain {
    const NAMESPACE: &'static str = "ledger";
    const PROCESS_MODE: &'static str = "node";
    const RULES: DomainRules = DomainRules {
        fault_weights: &[
            (Kill, 3),
            (KillAtCall, 4),
            (Drain, 2),
            (Stop, 3),
            (LoseReply, 5),
            (LoseMessages, 2),
            (CutMessages, 1),
            (CutCalls, 1),
            (ForgetScripts, 2),
            (Freeze, 1),
        ],
        soak_fault_weights: &SOAK_FAULT_WEIGHTS,
        target_scripts: &[
            "enqueue_jobs",
            "claim_lock_and_job",
            "settle_job_and_claim_next",
            "acquire",
            "release",
            "poll_due_locks_and_jobs",
            "renew",
            "heartbeat_and_shard_assignment",
        ],
        lease: Duration::from_secs(2),
        pause_ms: (150, 900),
        // Runs in periods of faults are checked with their excuses, undisturbed runs by all checks.
        fault_cycle: Some((Duration::from_secs(6), Duration::from_secs(8))),
        final_calm: Duration::from_secs(8),
        permanent_processes: &["a node of axum", "a node of actix-web"],
        server_label: "the server of jobs, beside its keys",
        excludes_key_memory: true,
        store_label: "jobs",
        // This process has a store too.
        closing_checks: ClosingChecks {
            local_stores: 1,
            has_workers: true,
            idle_timeout: Duration::from_secs(20),
            max_idle_windows: 20,
            ..ClosingChecks::COMMON
        },
        ..DomainRules::COMMON
    };

    async fn open(server: &RedisServer) -> Self {
        Self::connect(server).await
    }

    async fn start_processes(fleet: &mut ProcessFleet<Self>, rng: &mut SeededRng) {
        let registers = fleet.start_register_server(RESOURCE_COUNT).await;
        for framework in
            [WebFramework::Axum, WebFramework::Actix, WebFramework::Axum, WebFramework::Actix]
        {
            fleet
                .start_node(NodeSetup {
                    registers_url: registers.clone(),
                    ..NodeSetup::new(framework)
                })
                .await;
        }
        fleet.check_answers_within(MAX_ANSWER_TIME);
        for _ in 0..CLIENT_COUNT {
            let (requests, rng) = (fleet.recording_client(), SeededRng::new(rng.next_u64()));
            let (addrs, control) = (fleet.domain.node_addrs.clone(), fleet.client_control.clone());
            fleet.domain.clients.spawn(run_client(requests, addrs, rng, control));
        }
    }

    async fn on_process_start(
        &mut self,
        incarnation: ProcessIncarnation,
        process: &mut ChildProcess,
    ) {
        let line = with_timeout("a node to listen", process.next_line()).await;
        let addr = line.and_then(|line| line.parse().ok()).expect("the node prints its address");
        self.record_listener(incarnation, addr);
    }

    fn grace_period(fault: InjectedFault) -> Option<Duration> {
        match fault {
            Stop | LoseReply | CutMessages | CutCalls | Freeze | Restart => {
                Some(LEASE_GRACE_PERIOD)
            }
            Stall | Delay | Cut => Some(2 * LEASE_GRACE_PERIOD),
            _ => None,
        }
    }

    fn make_half_open(fleet: &ProcessFleet<Self>, _proxy: &FaultProxy, node: usize) {
        fleet.make_half_open(node);
    }

    async fn finish_and_check(
        fleet: &mut ProcessFleet<Self>,
        plan: &HistoryPlan,
        _last_fault_end: u64,
    ) -> HistoryReport {
        fleet.client_control.request_stop();
        let mut clients = std::mem::take(&mut fleet.domain.clients);
        while let Some(ended) = clients.join_next().await {
            // A client panics after too long a wait.
            ended.expect("no client panics");
        }
        for node in 0..fleet.process_count() {
            fleet.proxy(node).close_half_open();
            if !fleet.is_running(node) {
                fleet.replace_process(node).await;
            }
        }
        let super::DeferredReport {
            stats,
            cost_summary,
            mut violations,
            lost_requests,
            final_states,
            ..
        } = fleet.check_history(0).await;
        violations.extend(insufficient_coverage(&stats, plan.duration));
        let lines = vec![
            format!("{stats:?}; {final_states:?}; {cost_summary}"),
            format!(
                "figure: longest answer of an undisturbed process {} ms",
                stats.longest_wait / NS_PER_MS
            ),
            format!("figure: answers that the machine alone excuses {}", stats.excused_answers),
            format!(
                "figure: fewest undisturbed runs of 100 {}",
                percent_of_runs(stats.undisturbed_runs, &stats)
            ),
            format!("figure: accepted and lost {lost_requests}"),
        ];
        HistoryReport { lines, violations, log_folder: None }
    }
}

/// Percentage of all runs.
fn percent_of_runs(count: usize, stats: &DeferredCheckStats) -> usize {
    100 * count / (stats.runs + stats.direct_runs).max(1)
}

/// Faults that disturb nearly all runs would excuse nearly all violations. Runs that only the
/// machine disturbed do not count as disturbed.
fn insufficient_coverage(stats: &DeferredCheckStats, duration: Duration) -> Option<Violation> {
    let undisturbed_percent = percent_of_runs(stats.unfaulted_runs, stats);
    (duration >= LONG_RUN && undisturbed_percent < MIN_UNFAULTED_PERCENT).then(|| {
        let description =
            format!("faults touch all but {undisturbed_percent} of 100 runs: too little is judged");
        Violation { guarantee: Guarantee::D3, description }
    })
}

async fn run_client(
    requests: RecordingClient,
    addrs: NodeAddrs,
    mut rng: SeededRng,
    control: std::sync::Arc<ProcessControl>,
) {
    while control.wait_to_continue().await {
        let resource = rng.below(RESOURCE_COUNT).to_string();
        let node_addr = {
            let addrs = addrs.lock();
            addrs[rng.random_index(addrs.len())]
        };
        let request = requests.deferrable_request(node_addr, &resource);
        let ms = rng.below(60);
        let request = match rng.below(20) {
            0..=3 => request.refused_if_busy().instruct_handler(&format!("ms={ms}")),
            4..=5 => request.waiting_if_busy().instruct_handler(&format!("ms={ms}")),
            6..=11 => request.instruct_handler(&format!("ms={ms}")),
            12..=14 => request.put().instruct_handler(&format!("ms={ms}")),
            15 => request.put().delayed().instruct_handler(&format!("ms={ms}")),
            16 => request.expiring().instruct_handler(&format!("ms={ms}")),
            17 => request.put().skip_on_failure().instruct_handler(&format!("ms={ms}&fail=1")),
            18 => request.put().instruct_handler(&format!("ms={ms}&fail=1")),
            _ => request.instruct_handler(&format!("ms={ms}&panic=1")),
        };
        let key = uuid::Uuid::new_v4().simple().to_string();
        let request = if rng.chance_percent(30) { request.idempotency_key(&key) } else { request };
        request.send().await;
        tokio::time::sleep(rng.duration_between_ms(1, 40)).await;
    }
}
