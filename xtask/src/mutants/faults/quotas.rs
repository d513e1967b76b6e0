//! Quotas: counters of both stores, and the engine.

use super::{Fault, edit, rows, unit};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "window-without-end-lua",
        row: "q3",
        breaks: "a window that begins with a charge has no TTL",
        edits: &[edit(
            "src/store/lua/charge_batch_fast.lua",
            "call('SET', key, units_text, 'PXAT', expiry_text)",
            "call('SET', key, units_text)",
        )],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "charge-before-limit-lua",
        row: "q1",
        breaks: "a cost is charged where less than it is left",
        edits: &[edit(
            "src/store/lua/charge_batch_fast.lua",
            "if headroom < cost * admitted then admitted = headroom < cost and 0 or math.floor(headroom / cost) end",
            "if headroom < 1 then admitted = 0 end",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "limit-off-by-one-memory",
        row: "q1",
        breaks: "a fixed window lets in one more",
        edits: &[edit(
            "src/store/memory/rate_counters/counter_usage.rs",
            "fits(*limit, *spent, cost)\n",
            "fits(*limit + u64::from(FAULT), *spent, cost)\n",
        )],
        suites: &[unit(&["store::tests", "rate_limit::"])],
    },
    Fault {
        name: "gcra-paid-early-lua",
        row: "q5",
        breaks: "a debt is paid off twice as fast as the quota says",
        edits: &[edit(
            "src/store/lua/rate_counters.lua",
            "floor(max(now_us - since_us, 0) / tick_us) * tick_parts",
            "2 * floor(max(now_us - since_us, 0) / tick_us) * tick_parts",
        )],
        suites: &[unit(&["store::tests"])],
    },
    Fault {
        name: "sliding-forgets-memory",
        row: "q1",
        breaks: "the share of the window before is rounded down",
        edits: &[edit(
            "src/store/memory/rate_counters/counter_usage.rs",
            "scale_ceil(self.previous, self.left_ms(now), self.length_ms)",
            "(if FAULT { self.previous * self.left_ms(now) / self.length_ms } else { ORIGINAL })",
        )],
        suites: &[unit(&["store::tests", "rate_limit::"])],
    },
    Fault {
        name: "refund-moves-window-lua",
        row: "q4",
        breaks: "a correction begins the window anew",
        edits: &[edit(
            "src/store/lua/rate_counters.lua",
            "call('INCRBY', counter.key, integer(counter.spent - counter.used_before))",
            "call('SET', counter.key, integer(counter.spent), 'PX', integer(counter.window))",
        )],
        suites: &[unit(&["store::"])],
    },
    Fault {
        name: "refund-of-any-window-memory",
        row: "q4",
        breaks: "a refund of the window before is taken from this one",
        edits: &[edit(
            "src/store/memory/rate_counters/counter_usage.rs",
            "Self::Fixed { spent, end_ms: end } if end.abs_diff(window.boundary) <= near => {",
            "Self::Fixed { spent, end_ms: end } if FAULT || end.abs_diff(window.boundary) <= near => {",
        )],
        suites: &[unit(&["store::tests", "rate_limit::"])],
    },
    Fault {
        name: "policy-names-folded",
        row: "q1",
        breaks: "policies whose names differ in other letters share a counter",
        edits: &[edit(
            "src/rate_limit/policy.rs",
            "self.counter_name = escape(name.as_bytes()).into();",
            "ORIGINAL\n        if FAULT {\n            let fold = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };\n            self.counter_name = name.chars().map(fold).collect::<String>().into();\n        }",
        )],
        suites: &[unit(&["rate_limit::"])],
    },
    Fault {
        name: "charge-without-bound",
        row: "q4",
        breaks: "one charge after the fact blocks a key for a lifetime",
        edits: &[edit(
            "src/store/rate.rs",
            "units: units.min(rule.max_charge())",
            "units: if FAULT { units } else { units.min(rule.max_charge()) }",
        )],
        suites: &[unit(&["rate_limit::"])],
    },
    Fault {
        name: "refusal-outlives-refund",
        row: "q2",
        breaks: "a refusal is repeated after a refund has made room",
        edits: &[
            edit(
                "src/rate_limit/engine/charge_receipt.rs",
                "if matches!(settled.kind, AdjustmentKind::Refund { .. }) {",
                "if !FAULT && matches!(settled.kind, AdjustmentKind::Refund { .. }) {",
            ),
            edit(
                "src/rate_limit/engine/check_request.rs",
                "let unsteady = self.may_end_early || given_back || leases;",
                "let may_end_early = !FAULT && (self.may_end_early || given_back || leases);",
            ),
        ],
        suites: &[unit(&["rate_limit::"])],
    },
    Fault {
        name: "whole-quota-in-outage",
        row: "q10",
        breaks: "without the store each process lets in the whole quota",
        edits: &[
            edit(
                "src/rate_limit/engine/outage_limiter.rs",
                "u128::from(processes)",
                "u128::from(if FAULT { 1 } else { processes })",
            ),
            edit(
                "src/rate_limit/engine/outage_limiter.rs",
                "(quota.capacity() / processes)",
                "(quota.capacity() / if FAULT { 1 } else { processes })",
            ),
        ],
        suites: &[unit(&["rate_limit::"])],
    },
    Fault {
        name: "lease-outlives-window",
        row: "q1",
        breaks: "a quota leased in one window is spent in the next",
        edits: &[
            edit(
                "src/rate_limit/engine/quota_lease.rs",
                ".filter(|_| now < self.valid_until && self.units > 0)?;",
                ".filter(|_| (FAULT || now < self.valid_until) && self.units > 0)?;",
            ),
            edit(
                "src/rate_limit/engine/quota_lease.rs",
                "let (reset, remaining) = (self.valid_until - now,",
                "let (reset, remaining) = (self.valid_until.saturating_duration_since(now),",
            ),
        ],
        suites: &[unit(&["rate_limit::"])],
    },
    Fault {
        name: "translated-clients-share",
        row: "q1",
        breaks: "all clients behind NAT64 have one quota",
        edits: &[edit(
            "src/key/canonical_ip.rs",
            "let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() else { return None };",
            "ORIGINAL\n    if FAULT {\n        return None;\n    }",
        )],
        suites: &[unit(&["key::"]), rows(&["client::"])],
    },
    Fault {
        name: "dropped-check-keeps-its-charge",
        row: "q11",
        breaks: "a check that is dropped stays charged",
        edits: &[edit(
            "src/rate_limit/engine/charge_receipt.rs",
            "        let _ = self.refund_all();",
            "        if !FAULT {\n            let _ = self.refund_all();\n        }",
        )],
        suites: &[unit(&["rate_limit::"])],
    },
];
