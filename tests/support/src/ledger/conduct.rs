//! The long run: clients and faults at random, and the books at the end.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use tokio::{sync::watch, task::JoinSet};

use super::{
    fleet::{Fleet, Requests, Verdict},
    node::Setup,
};
use crate::{
    history::dice::Dice,
    proxy::{Moment, Rule},
    site::Framework,
};

/// Clients, each with one request at a time. As many resources as half of them.
const CLIENTS: usize = 12;
const RESOURCES: u64 = 6;

/// How long after a fault its traces are looked for: a lease and the time to notice.
const AFTERMATH: Duration = Duration::from_secs(4);

/// The scripts whose calls are struck.
const SCRIPTS: [&str; 8] =
    ["enqueue", "claim", "settle", "acquire", "release", "due", "renew", "beat"];

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The program whose `node` mode is [`node`](super::node).
    pub program: PathBuf,
    /// How long there are clients and faults.
    pub time: Duration,
    /// Of all choices.
    pub seed: u64,
}

/// Runs it, and has it checked. What was done is told as well.
///
/// # Panics
///
/// If a server or a process can't be started.
pub async fn conduct(plan: &Plan) -> (String, Verdict) {
    let (started, mut dice) = (Instant::now(), Dice::new(plan.seed));
    let mut fleet = Fleet::new(&plan.program).await;
    for framework in [Framework::Axum, Framework::Actix, Framework::Axum, Framework::Actix] {
        fleet.join(Setup::new(framework)).await;
    }
    let addrs = Arc::new(Mutex::new((0..fleet.size()).map(|node| fleet.addr(node)).collect()));
    let (stop, stopped) = watch::channel(false);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let (requests, dice) = (fleet.requests(), Dice::new(dice.roll()));
        clients.spawn(client(requests, Arc::clone(&addrs), dice, stopped.clone()));
    }
    let mut done: BTreeMap<String, usize> = BTreeMap::new();
    while started.elapsed() < plan.time {
        let fault = Fault::draw(&mut dice);
        *done.entry(format!("{fault:?}")).or_default() += 1;
        one(&mut fleet, fault, &addrs, &mut dice).await;
        tokio::time::sleep(dice.ms(150, 900)).await;
    }
    stop.send_replace(true);
    while clients.join_next().await.is_some() {}
    // What a proxy was told to do to somebody who is dead by now, or did not call, is not done any more.
    for node in 0..fleet.size() {
        fleet.proxy(node).forget_rules();
        fleet.proxy(node).lose_messages(false);
        if !fleet.lives(node) {
            fleet.replace(node).await;
        }
    }
    let verdict = fleet.settle(0).await;
    let done: Vec<_> = done.iter().map(|(fault, count)| format!("{count} {fault}")).collect();
    let (seed, took) = (plan.seed, started.elapsed());
    (format!("seed {seed}, {took:.0?}; faults: {}", done.join(", ")), verdict)
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    /// SIGKILL, and another process in its place.
    Kill,
    /// SIGKILL at a call: before the server has it, or when it has run.
    KillAtCall,
    /// SIGTERM, and another process in its place.
    Drain,
    /// SIGSTOP, for less or more than a lease.
    Stop,
    /// The reply of a call is lost, and its connection.
    LoseReply,
    /// Messages are lost for a while.
    Deafen,
    /// Subscribers are cut off.
    CutMessages,
    /// Everybody else is.
    CutCalls,
    ForgetScripts,
    /// The server stands still.
    Freeze,
}

impl Fault {
    fn draw(dice: &mut Dice) -> Self {
        match dice.below(24) {
            0..=2 => Self::Kill,
            3..=6 => Self::KillAtCall,
            7..=8 => Self::Drain,
            9..=11 => Self::Stop,
            12..=16 => Self::LoseReply,
            17..=18 => Self::Deafen,
            19 => Self::CutMessages,
            20 => Self::CutCalls,
            21..=22 => Self::ForgetScripts,
            _ => Self::Freeze,
        }
    }
}

type Addrs = Arc<Mutex<Vec<SocketAddr>>>;

async fn one(fleet: &mut Fleet, fault: Fault, addrs: &Addrs, dice: &mut Dice) {
    let node = usize::try_from(dice.below(4)).unwrap_or(0);
    if !fleet.lives(node) {
        fleet.replace(node).await;
    }
    let script = SCRIPTS[usize::try_from(dice.below(8)).unwrap_or(0)];
    let moment = if dice.percent(50) { Moment::Before } else { Moment::After };
    let rule = Rule::new(script, moment).skip(usize::try_from(dice.below(4)).unwrap_or(0));
    match fault {
        Fault::Kill => fleet.replace(node).await,
        Fault::KillAtCall => {
            let mut struck = fleet.proxy(node).strike(rule.act(fleet.killer(node)));
            // Clients call again and again; if not this one, the next fault finds it alive.
            let _ = tokio::time::timeout(Duration::from_secs(2), struck.happened()).await;
            fleet.proxy(node).forget_rules();
            if struck.has_happened() {
                fleet.replace(node).await;
            }
        }
        Fault::Drain => {
            fleet.terminate(node);
            fleet.ended(node).await;
            fleet.replace(node).await;
        }
        Fault::Stop => {
            let time = if dice.percent(50) { dice.ms(50, 1500) } else { dice.ms(2000, 3500) };
            fleet.trouble_for(Some(node), time + AFTERMATH);
            fleet.pause(node);
            tokio::time::sleep(time).await;
            fleet.resume(node, time);
        }
        Fault::LoseReply => {
            fleet.trouble_for(Some(node), AFTERMATH);
            let _struck = fleet.proxy(node).strike(rule);
        }
        Fault::Deafen => {
            fleet.proxy(node).lose_messages(true);
            tokio::time::sleep(dice.ms(200, 1500)).await;
            fleet.proxy(node).lose_messages(false);
        }
        Fault::CutMessages => cut(fleet, "pubsub").await,
        Fault::CutCalls => cut(fleet, "normal").await,
        Fault::ForgetScripts => {
            fleet.command(&["SCRIPT", "FLUSH"]).await;
        }
        Fault::Freeze => {
            let time = dice.ms(50, 400);
            fleet.trouble_for(None, time + AFTERMATH);
            fleet.server.pause();
            tokio::time::sleep(time).await;
            fleet.server.resume();
        }
    }
    addrs.lock()[node] = fleet.addr(node);
}

async fn cut(fleet: &Fleet, kind: &str) {
    fleet.trouble_for(None, AFTERMATH);
    fleet.command(&["CLIENT", "KILL", "TYPE", kind]).await;
}

async fn client(requests: Requests, addrs: Addrs, mut dice: Dice, stopped: watch::Receiver<bool>) {
    while !*stopped.borrow() {
        let resource = dice.below(RESOURCES).to_string();
        let node = usize::try_from(dice.below(4)).unwrap_or(0);
        let at = addrs.lock()[node];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_that_is_struck_is_there() {
        let strike = |script: &&str| {
            let file = format!("{}/../../src/store/lua/{script}.lua", env!("CARGO_MANIFEST_DIR"));
            std::path::Path::new(&file).exists()
        };
        assert!(SCRIPTS.iter().all(strike));
    }
}
