//! Schedule of the random faults, and the measurements of a soak.

use std::time::{Duration, Instant};

use super::{FleetDomain, HistoryPlan, InjectedFault, ProcessFleet, clock, seeded_rng::SeededRng};
use crate::{
    checker::{Guarantee, Violation},
    proxy::FaultProxy,
    resource_usage::ResourceUsage,
    soak_measurements::{self, MeasuredResource},
    store_inspection,
};

/// Longest time that a run goes on which has not shown enough.
const MAX_EXTRA_TIME: Duration = Duration::from_secs(20);

impl<D: FleetDomain> ProcessFleet<D> {
    /// Makes faults until the time without them at the end. Returns when the last one was over, ns.
    pub(super) async fn run_fault_schedule(
        &mut self,
        plan: &HistoryPlan,
        started: Instant,
        dice: &mut SeededRng,
    ) -> u64 {
        let last = D::RULES.final_calm;
        let mut until = started + plan.duration.saturating_sub(last);
        loop {
            self.inject_faults_until(until, dice).await;
            let calm = clock::now_ns();
            tokio::time::sleep(last).await;
            if D::has_sufficient_coverage(self)
                || started.elapsed() > plan.duration + MAX_EXTRA_TIME
            {
                return calm;
            }
            until = Instant::now() + last;
        }
    }

    async fn inject_faults_until(&mut self, until: Instant, dice: &mut SeededRng) {
        let (rules, mut turned) = (D::RULES, Instant::now());
        while Instant::now() < until {
            // Dice of its own: with the same seed the next faults are the same, whatever comes of this one.
            let mut own = SeededRng::new(dice.next_u64());
            let soak = if self.is_soak() { rules.soak_fault_weights } else { &[] };
            let drawn = InjectedFault::draw_weighted(&mut own, &[rules.fault_weights, soak]);
            // However short the run is, a process is killed.
            let fault = if self.fault_counts.is_empty() { InjectedFault::Kill } else { drawn };
            *self.fault_counts.entry(fault).or_default() += 1;
            D::on_fault(self, &mut own);
            self.inject_fault(fault, &mut own).await;
            tokio::time::sleep(own.duration_between_ms(rules.pause_ms.0, rules.pause_ms.1)).await;
            let turn = rules.fault_cycle.filter(|(faulty, _)| turned.elapsed() > *faulty);
            if let Some((_, calm)) = turn {
                self.wait_until_all_resumed().await;
                let left = until.saturating_duration_since(Instant::now());
                tokio::time::sleep(calm.min(left)).await;
                turned = Instant::now();
            }
            let due =
                self.soak_interval.is_some_and(|every| self.last_measured_at.elapsed() > every);
            if due && (turn.is_some() || !rules.measures_in_calm) {
                self.wait_until_all_resumed().await;
                self.measure_at_rest().await;
                turned = Instant::now();
            }
        }
        self.wait_until_all_resumed().await;
        self.proxies().for_each(FaultProxy::clear_rules);
    }

    /// The faults that were made, counted.
    pub(super) fn fault_summary(&self) -> String {
        let done = self.fault_counts.iter().map(|(fault, count)| format!("{count} {fault:?}"));
        done.collect::<Vec<_>>().join(", ")
    }

    /// All processes end what they have begun. Those that are never replaced are measured, and the server.
    async fn measure_at_rest(&mut self) {
        let rules = D::RULES;
        self.client_control.set_resting(true);
        self.send_line_to_all("rest").await;
        self.measurements.begin_round();
        let mut connection = self.server.connection().await;
        let keys = self.count_leftover_keys(&mut connection).await;
        self.measurements.record_value(rules.store_label, MeasuredResource::LeftoverKeys, keys);
        let kept = store_inspection::permanent_key_kib(&mut connection, D::NAMESPACE).await;
        self.measurements.record_value(rules.store_label, MeasuredResource::PermanentKeys, kept);
        for (who, name) in rules.permanent_processes.iter().enumerate() {
            let gauge = ResourceUsage::query_process(self.process(who)).await;
            self.measurements.record_usage(name, gauge);
        }
        let mut gauge = ResourceUsage::of_process(self.server.pid());
        if rules.excludes_key_memory {
            // Results are kept for a day, which is no growth. Keys without an end are measured above.
            gauge.memory_kib = Some(store_inspection::overhead_kib(&mut connection).await);
        }
        self.measurements.record_usage(rules.server_label, gauge);
        self.send_line_to_all("go").await;
        self.client_control.set_resting(false);
        self.last_measured_at = Instant::now();
    }

    /// All measurements of a soak, and those that have grown.
    pub(super) fn growth_report(&self) -> (Vec<String>, Vec<Violation>) {
        let rules = D::RULES;
        let mut expected: Vec<_> = rules
            .permanent_processes
            .iter()
            .map(|name| (*name, soak_measurements::PROCESS_RESOURCES))
            .collect();
        expected.extend([
            (rules.server_label, soak_measurements::SERVER_RESOURCES),
            (rules.store_label, soak_measurements::STORE_RESOURCES),
        ]);
        let expected = if self.is_soak() { &expected[..] } else { &[] };
        let (flat, grown) = self.measurements.find_growth(expected);
        let violation = |told| Violation { guarantee: Guarantee::N1, description: told };
        (flat, grown.into_iter().map(violation).collect())
    }
}
