//! Injection of each fault into a process, its connections or the server.

use std::{sync::Arc, time::Duration};

use super::{
    FleetDomain, InjectedFault, LEASE_GRACE_PERIOD, ProcessFleet,
    child_process::resume_pid,
    clock::{self, duration_ns},
    seeded_rng::SeededRng,
};
use crate::{
    checker::deferred::ProcessDisturbance,
    proxy::{FaultPoint, FaultRule},
};

/// Lifetime of half-open connections. Calls time out after five seconds, so most connections are
/// abandoned by then.
const HALF_OPEN_TIMEOUT: Duration = Duration::from_secs(12);

impl<D: FleetDomain> ProcessFleet<D> {
    /// Injects a fault and records the time in which its effects are excused.
    pub(super) async fn inject_fault(&mut self, fault: InjectedFault, rng: &mut SeededRng) {
        let mut node = rng.random_index(self.process_count());
        if self.is_soak() && fault.ends_process() && node < D::RULES.permanent_processes.len() {
            // The permanent processes of a soak are not replaced.
            node += D::RULES.permanent_processes.len();
        }
        if self.disturbances.lock().killed_at.contains_key(&self.incarnation(node)) {
            self.replace_process(node).await;
        }
        let from = clock::now_ns();
        if fault.affects_all_processes() {
            self.inject_server_fault(fault, rng).await;
        } else {
            self.inject_process_fault(node, fault, rng).await;
        }
        // A lost reply is recorded when a call matches its rule.
        if let Some(grace_time) =
            D::grace_period(fault).filter(|_| fault != InjectedFault::LoseReply)
        {
            let to =
                clock::now_ns().max(self.members[node].stopped_until) + duration_ns(grace_time);
            self.record_disturbance((!fault.affects_all_processes()).then_some(node), from, to);
        }
    }

    async fn inject_server_fault(&mut self, fault: InjectedFault, rng: &mut SeededRng) {
        match fault {
            InjectedFault::CutMessages => {
                drop(self.send_server_command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await);
            }
            InjectedFault::CutCalls => {
                drop(self.send_server_command(&["CLIENT", "KILL", "TYPE", "normal"]).await);
            }
            InjectedFault::Freeze => {
                self.server.pause();
                tokio::time::sleep(rng.duration_between_ms(50, 400)).await;
                self.server.resume();
            }
            InjectedFault::Restart => {
                self.server.kill();
                tokio::time::sleep(rng.duration_between_ms(0, D::RULES.max_downtime_ms)).await;
                self.server.restart().await;
            }
            _ => drop(self.send_server_command(&["SCRIPT", "FLUSH"]).await),
        }
    }

    async fn inject_process_fault(
        &mut self,
        node: usize,
        fault: InjectedFault,
        rng: &mut SeededRng,
    ) {
        match fault {
            InjectedFault::Kill => self.replace_process(node).await,
            InjectedFault::KillAtCall => self.kill_at_call(node, rng).await,
            InjectedFault::Drain => {
                self.terminate(node);
                self.wait_for_exit(node).await;
                self.replace_process(node).await;
            }
            InjectedFault::Stop => self.pause_temporarily(node, rng).await,
            _ => self.inject_connection_fault(node, fault, rng).await,
        }
    }

    async fn inject_connection_fault(
        &self,
        node: usize,
        fault: InjectedFault,
        rng: &mut SeededRng,
    ) {
        let proxy = self.proxy(node);
        match fault {
            InjectedFault::LoseReply => {
                let rule = random_fault_rule::<D>(rng);
                // The rule may match much later, or never.
                drop(proxy.add_rule(match D::grace_period(fault) {
                    Some(grace_time) => {
                        rule.with_action(self.disturbance_callback(node, grace_time))
                    }
                    None => rule,
                }));
            }
            InjectedFault::LoseMessages => {
                proxy.set_drop_messages(true);
                tokio::time::sleep(rng.duration_between_ms(200, 2000)).await;
                proxy.set_drop_messages(false);
            }
            InjectedFault::Stall => {
                proxy.set_stalled(true);
                tokio::time::sleep(rng.duration_between_ms(100, 2300)).await;
                proxy.set_stalled(false);
            }
            InjectedFault::Delay => {
                proxy.set_delay(rng.duration_between_ms(5, 120));
                tokio::time::sleep(rng.duration_between_ms(100, 1500)).await;
                proxy.set_delay(Duration::ZERO);
            }
            InjectedFault::HalfOpen => D::make_half_open(self, proxy, node),
            _ => proxy.cut_connections(),
        }
    }

    async fn kill_at_call(&mut self, node: usize, rng: &mut SeededRng) {
        let proxy = self.proxy(node).clone();
        let mut rule_match =
            proxy.add_rule(random_fault_rule::<D>(rng).with_action(self.kill_callback(node)));
        // Calls are frequent. If none matches the rule, the process survives until the next fault.
        let _ = tokio::time::timeout(Duration::from_secs(2), rule_match.wait_for_match()).await;
        proxy.clear_rules();
        if rule_match.has_matched() || !self.is_running(node) {
            self.replace_process(node).await;
        }
    }

    async fn pause_temporarily(&mut self, node: usize, rng: &mut SeededRng) {
        let lease = u64::try_from(D::RULES.lease.as_millis()).unwrap_or(0);
        let is_short = rng.chance_percent(50);
        let duration = if is_short {
            rng.duration_between_ms(20, lease)
        } else {
            rng.duration_between_ms(lease, lease + 1500)
        };
        let (now, member) = (clock::now_ns(), &mut self.members[node]);
        if member.stopped_until > now {
            return;
        }
        member.process.pause();
        member.stopped_until = now + duration_ns(duration);
        let pid = member.process.pid();
        let resumed = tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            // A process that was replaced meanwhile has another pid and needs no signal.
            pid.into_iter().for_each(resume_pid);
        });
        if !D::RULES.stops_overlap {
            let _ = resumed.await;
        }
    }

    /// Waits until no process is paused.
    pub(super) async fn wait_until_all_resumed(&self) {
        let last_resume = self.members.iter().map(|member| member.stopped_until).max().unwrap_or(0);
        if let Some(remaining) = last_resume.checked_sub(clock::now_ns()) {
            tokio::time::sleep(Duration::from_nanos(remaining + 10 * clock::NS_PER_MS)).await;
        }
    }
}

fn random_fault_rule<D: FleetDomain>(rng: &mut SeededRng) -> FaultRule {
    let script = *rng.pick(D::RULES.target_scripts);
    let fault_point =
        if rng.chance_percent(50) { FaultPoint::BeforeCall } else { FaultPoint::AfterCall };
    FaultRule::new(script, fault_point).skip_calls(rng.random_index(4))
}

impl<D> ProcessFleet<D> {
    /// Makes the connections of a process half open. The disturbance lasts until all of them are
    /// replaced, each after three unanswered calls, so an idle connection is replaced late. The
    /// remaining ones are closed after `HALF_OPEN_TIMEOUT`.
    pub fn make_half_open(&self, node: usize) {
        let proxy = self.proxy(node).clone();
        let (incarnation, from) = (Some(self.incarnation(node)), clock::now_ns());
        let index = {
            let disturbances = &mut self.disturbances.lock().disturbances;
            disturbances.push(ProcessDisturbance {
                incarnation,
                from,
                to: from + duration_ns(HALF_OPEN_TIMEOUT + LEASE_GRACE_PERIOD),
            });
            disturbances.len() - 1
        };
        proxy.half_open_connections();
        let log = Arc::clone(&self.disturbances);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(HALF_OPEN_TIMEOUT, proxy.wait_until_half_open_abandoned())
                .await;
            proxy.close_half_open();
            // The record is missing if the check has taken the log meanwhile.
            if let Some(disturbance) = log.lock().disturbances.get_mut(index) {
                disturbance.to = clock::now_ns() + duration_ns(LEASE_GRACE_PERIOD);
            }
        });
    }
}
