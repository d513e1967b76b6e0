//! The faults of the long run: which are drawn, and how each is done.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;

use super::{fleet::Fleet, stall::AFTERMATH};
use crate::{
    history::dice::Dice,
    proxy::{Moment, Proxy, Rule},
};

/// The scripts whose calls are struck.
const SCRIPTS: [&str; 8] =
    ["enqueue", "claim", "settle", "acquire", "release", "due", "renew", "beat"];

#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
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
    /// The server is ended, and comes back with its log.
    Restart,
    /// The cable of a process is pulled for a while.
    Stall,
    /// Its connections are half open.
    HalfOpen,
    /// What it sends and hears comes late.
    Delay,
    /// Its connections end.
    Cut,
}

impl Fault {
    pub(super) fn draw(dice: &mut Dice, soaks: bool) -> Self {
        match dice.below(if soaks { 36 } else { 24 }) {
            0..=2 => Self::Kill,
            3..=6 => Self::KillAtCall,
            7..=8 => Self::Drain,
            9..=11 => Self::Stop,
            12..=16 => Self::LoseReply,
            17..=18 => Self::Deafen,
            19 => Self::CutMessages,
            20 => Self::CutCalls,
            21..=22 => Self::ForgetScripts,
            23 => Self::Freeze,
            24 | 25 => Self::Restart,
            26..=28 => Self::Stall,
            29..=31 => Self::HalfOpen,
            32 | 33 => Self::Delay,
            _ => Self::Cut,
        }
    }
}

/// Where the processes listen.
pub(super) type Addrs = Arc<Mutex<Vec<SocketAddr>>>;

pub(super) async fn one(
    fleet: &mut Fleet,
    fault: Fault,
    addrs: &Addrs,
    dice: &mut Dice,
    soaks: bool,
) {
    let mut node = usize::try_from(dice.below(4)).unwrap_or(0);
    let ends = matches!(fault, Fault::Kill | Fault::KillAtCall | Fault::Drain);
    if soaks && ends && node < 2 {
        // The first one of each framework grows old in a soak.
        node += 2;
    }
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
            // That is when a call meets it, which may be long after this, or never.
            let _struck = fleet.proxy(node).strike(rule.act(fleet.troubler(node, AFTERMATH)));
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
        Fault::Restart => {
            let time = dice.ms(0, 400);
            fleet.trouble_for(None, time + AFTERMATH);
            fleet.server.kill();
            tokio::time::sleep(time).await;
            fleet.server.restart().await;
        }
        Fault::HalfOpen => fleet.half_open(node),
        Fault::Stall | Fault::Delay | Fault::Cut => {
            let time = dice.ms(100, 2300);
            fleet.trouble_for(Some(node), time + 2 * AFTERMATH);
            cable(fleet.proxy(node), fault, time).await;
        }
    }
    addrs.lock()[node] = fleet.addr(node);
}

async fn cable(proxy: &Proxy, fault: Fault, time: Duration) {
    match fault {
        Fault::Stall => {
            proxy.stall(true);
            tokio::time::sleep(time).await;
            proxy.stall(false);
        }
        Fault::Delay => {
            proxy.delay(time / 20);
            tokio::time::sleep(time).await;
            proxy.delay(Duration::ZERO);
        }
        _ => proxy.cut(),
    }
}

async fn cut(fleet: &Fleet, kind: &str) {
    fleet.trouble_for(None, AFTERMATH);
    fleet.command(&["CLIENT", "KILL", "TYPE", kind]).await;
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
