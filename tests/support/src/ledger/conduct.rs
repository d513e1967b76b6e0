//! The domain of deferred requests: its faults, its clients, and its figures.

use std::time::Duration;

use super::{
    books::{Addrs, Books},
    later::Requests,
    node::Setup,
};
use crate::{
    checker::{Guarantee, ProcessIncarnation, Violation, deferred::DeferredCheckStats},
    fleet::{
        AFTERMATH, Closing, Domain,
        Fault::{self, *},
        Fleet, Plan, Process, Rules, SOAK, Verdict,
        clock::MS,
        dice::Dice,
        orders::Orders,
    },
    proxy::Proxy,
    redis::Server,
    site::Framework,
    wait::within,
};

/// Clients, each with one request at a time. As many resources as half of them.
const CLIENTS: usize = 12;
const RESOURCES: u64 = 6;

/// How long a client may wait for its answer: requests that wait for their lock are told after ten seconds that they
/// don't have it, and the rest is for a machine that has other things to do.
const PATIENCE: Duration = Duration::from_secs(16);

/// In runs so long that there were some times without faults, so many of a hundred runs must be untouched by any.
const LONG: Duration = Duration::from_secs(40);
const UNTOUCHED: usize = 10;

impl Domain for Books {
    const NAME: &'static str = "ledger";
    const MODE: &'static str = "node";
    const RULES: Rules = Rules {
        faults: &[
            (Kill, 3),
            (KillAtCall, 4),
            (Drain, 2),
            (Stop, 3),
            (LoseReply, 5),
            (Deafen, 2),
            (CutMessages, 1),
            (CutCalls, 1),
            (ForgetScripts, 2),
            (Freeze, 1),
        ],
        soak: &SOAK,
        scripts: &[
            "enqueue_batch",
            "claim_job",
            "settle_job",
            "acquire",
            "release",
            "poll_due",
            "renew",
            "heartbeat",
        ],
        lease: Duration::from_secs(2),
        pause: (150, 900),
        // Runs in times of faults are judged by what faults excuse, and untouched runs by all checks.
        turns: Some((Duration::from_secs(6), Duration::from_secs(8))),
        last: Duration::from_secs(8),
        old: &["a node of axum", "a node of actix-web"],
        server: "the server of jobs, beside its keys",
        beside_keys: true,
        store: "jobs",
        // This process has a store too.
        closing: Closing {
            own: 1,
            workers: true,
            rest: Duration::from_secs(20),
            tries: 20,
            ..Closing::COMMON
        },
        ..Rules::COMMON
    };

    async fn open(server: &Server) -> Self {
        Self::on(server).await
    }

    async fn begin(fleet: &mut Fleet<Self>, dice: &mut Dice) {
        let registers = fleet.keeps_registers(RESOURCES).await;
        for framework in [Framework::Axum, Framework::Actix, Framework::Axum, Framework::Actix] {
            fleet.join(Setup { registers: registers.clone(), ..Setup::new(framework) }).await;
        }
        fleet.judges_answers(PATIENCE);
        for _ in 0..CLIENTS {
            let (requests, dice) = (fleet.requests(), Dice::new(dice.roll()));
            let (addrs, orders) = (fleet.domain.addrs.clone(), fleet.orders.clone());
            fleet.domain.clients.spawn(client(requests, addrs, dice, orders));
        }
    }

    async fn started(&mut self, life: ProcessIncarnation, process: &mut Process) {
        let said = within("a node to listen", process.says()).await;
        let addr = said.and_then(|said| said.parse().ok()).expect("it says where it listens");
        self.listens(life, addr);
    }

    fn aftermath(fault: Fault) -> Option<Duration> {
        match fault {
            Stop | LoseReply | CutMessages | CutCalls | Freeze | Restart => Some(AFTERMATH),
            Stall | Delay | Cut => Some(2 * AFTERMATH),
            _ => None,
        }
    }

    fn half_open(fleet: &Fleet<Self>, _proxy: &Proxy, who: usize) {
        fleet.half_open(who);
    }

    async fn judge(fleet: &mut Fleet<Self>, plan: &Plan, _calm: u64) -> Verdict {
        fleet.orders.stop();
        let mut clients = std::mem::take(&mut fleet.domain.clients);
        while let Some(ended) = clients.join_next().await {
            // One that has waited for too long.
            ended.expect("no client panics");
        }
        for node in 0..fleet.size() {
            fleet.proxy(node).end_half_open();
            if !fleet.lives(node) {
                fleet.replace(node).await;
            }
        }
        let super::Verdict { looked, cost, mut wrong, lost, states, .. } = fleet.checked(0).await;
        wrong.extend(too_little(&looked, plan.time));
        let told = vec![
            format!("{looked:?}; {states:?}; {cost}"),
            format!(
                "figure: longest answer of those that nothing is done to {} ms",
                looked.longest_wait / MS
            ),
            format!("figure: answers that the machine alone excuses {}", looked.excused_answers),
            format!(
                "figure: fewest runs of 100 that nothing has touched {}",
                share(looked.undisturbed_runs, &looked)
            ),
            format!("figure: accepted and lost {lost}"),
        ];
        Verdict { told, wrong, logs: None }
    }
}

/// Of a hundred runs.
fn share(of: usize, looked: &DeferredCheckStats) -> usize {
    100 * of / (looked.runs + looked.direct_runs).max(1)
}

/// Faults that touch nearly all runs excuse nearly all: then nothing was judged. Runs that the machine has touched
/// besides are not to be blamed on the faults.
fn too_little(looked: &DeferredCheckStats, time: Duration) -> Option<Violation> {
    let spared = share(looked.unfaulted_runs, looked);
    (time >= LONG && spared < UNTOUCHED).then(|| {
        let told = format!("faults touch all but {spared} of 100 runs: too little is judged");
        Violation { guarantee: Guarantee::D3, description: told }
    })
}

async fn client(requests: Requests, addrs: Addrs, mut dice: Dice, orders: std::sync::Arc<Orders>) {
    while orders.go_on().await {
        let resource = dice.below(RESOURCES).to_string();
        let at = {
            let addrs = addrs.lock();
            addrs[dice.index(addrs.len())]
        };
        let request = requests.later(at, &resource);
        let ms = dice.below(60);
        let later = match dice.below(20) {
            0..=3 => request.pay().wish(&format!("ms={ms}")),
            4..=5 => request.ship().wish(&format!("ms={ms}")),
            6..=11 => request.wish(&format!("ms={ms}")),
            12..=14 => request.put().wish(&format!("ms={ms}")),
            15 => request.put().delayed().wish(&format!("ms={ms}")),
            16 => request.soon().wish(&format!("ms={ms}")),
            17 => request.put().skip().wish(&format!("ms={ms}&fail=1")),
            18 => request.put().wish(&format!("ms={ms}&fail=1")),
            _ => request.wish(&format!("ms={ms}&panic=1")),
        };
        let key = uuid::Uuid::new_v4().simple().to_string();
        let later = if dice.percent(30) { later.key(&key) } else { later };
        later.send().await;
        tokio::time::sleep(dice.ms(1, 40)).await;
    }
}
