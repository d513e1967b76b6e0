//! Faults in quotas: the counters of both stores, and the engine.

use super::{SourceFault, edit, scenario_tests, unit_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "window-without-end-lua",
        table_row: "q3",
        broken_behavior: "a window that begins with a charge has no TTL",
        edits: &[edit(
            "src/store/lua/charge_batch_fast.lua",
            "call('SET', key, units_text, 'PXAT', expiry_text)",
            "call('SET', key, units_text)",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "charge-before-limit-lua",
        table_row: "q1",
        broken_behavior: "a cost is charged although fewer units are left",
        edits: &[edit(
            "src/store/lua/charge_batch_fast.lua",
            "      if headroom < cost * admitted then\n",
            "      if headroom < 1 then admitted = 0 end\n      if false then\n",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "limit-off-by-one-memory",
        table_row: "q1",
        broken_behavior: "a fixed window admits one request too many",
        edits: &[edit(
            "src/store/memory/rate_counters/stored_counter.rs",
            "fits(*limit, *spent, cost)\n",
            "fits(*limit + u64::from(FAULT), *spent, cost)\n",
        )],
        suites: &[unit_tests(&["store::tests", "rate_limit::"])],
    },
    SourceFault {
        name: "policy-change-overwritten-lua",
        table_row: "q1",
        broken_behavior: "an operator overwrites a change of policies that another one has made",
        edits: &[edit(
            "src/store/lua/replace_policy_changes.lua",
            "if version == ARGV[1] then",
            "if true then",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "operator-block-cut-lua",
        table_row: "q1",
        broken_behavior: "a block by an operator is cut to the length of the policy's penalty",
        edits: &[edit(
            "src/store/lua/charge_batch.lua",
            "to_number(operator_block_ms) or max_ttl_ms",
            "max_ttl_ms",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "policy-change-keeps-refusals",
        table_row: "q1",
        broken_behavior: "cached refusals outlast a reset by an operator",
        edits: &[edit(
            "src/rate_limit/engine/policy_follower.rs",
            "self.invalidate_all_refusals();",
            "if !FAULT { self.invalidate_all_refusals(); }",
        )],
        suites: &[unit_tests(&["admin::"])],
    },
    SourceFault {
        name: "gcra-paid-early-lua",
        table_row: "q5",
        broken_behavior: "a GCRA debt is repaid at twice the rate of the quota",
        edits: &[edit(
            "src/store/lua/quota_counter_load_store.lua",
            "floor(max(now_us - since_us, 0) / tick_us) * tick_parts",
            "2 * floor(max(now_us - since_us, 0) / tick_us) * tick_parts",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "sliding-forgets-memory",
        table_row: "q1",
        broken_behavior: "the share of the previous window is rounded down",
        edits: &[edit(
            "src/store/memory/rate_counters/stored_counter.rs",
            "scale_ceil(self.previous, self.left_ms(now), self.length_ms)",
            "(if FAULT { self.previous * self.left_ms(now) / self.length_ms } else { ORIGINAL })",
        )],
        suites: &[unit_tests(&["store::tests", "rate_limit::"])],
    },
    SourceFault {
        name: "refund-moves-window-lua",
        table_row: "q4",
        broken_behavior: "an adjustment restarts the window",
        edits: &[edit(
            "src/store/lua/quota_counter_load_store.lua",
            "call('INCRBY', counter.key, integer(counter.spent - counter.used_before))",
            "call('SET', counter.key, integer(counter.spent), 'PX', integer(counter.window_ms))",
        )],
        suites: &[unit_tests(&["store::"])],
    },
    SourceFault {
        name: "refund-of-any-window-memory",
        table_row: "q4",
        broken_behavior: "a refund of the previous window is deducted from the current one",
        edits: &[edit(
            "src/store/memory/rate_counters/stored_counter.rs",
            "Self::Fixed { spent, end_ms } if end_ms.abs_diff(window.boundary) <= tolerance_ms => {",
            "Self::Fixed { spent, end_ms } if FAULT || end_ms.abs_diff(window.boundary) <= tolerance_ms => {",
        )],
        suites: &[unit_tests(&["store::tests", "rate_limit::"])],
    },
    SourceFault {
        name: "policy-names-folded",
        table_row: "q1",
        broken_behavior: "names that differ only outside ASCII letters and digits share a counter",
        edits: &[edit(
            "src/rate_limit/policy_cost_and_reactions.rs",
            "self.counter_name = escape(name.as_bytes()).into();",
            "ORIGINAL\n        if FAULT {\n            let fold = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };\n            self.counter_name = name.chars().map(fold).collect::<String>().into();\n        }",
        )],
        suites: &[unit_tests(&["rate_limit::"])],
    },
    SourceFault {
        name: "charge-without-bound",
        table_row: "q4",
        broken_behavior: "a charge after the response has no maximum",
        edits: &[edit(
            "src/store/rate/charge_adjustment.rs",
            "units: units.min(rule.max_charge())",
            "units: if FAULT { units } else { units.min(rule.max_charge()) }",
        )],
        suites: &[unit_tests(&["rate_limit::"])],
    },
    SourceFault {
        name: "refusal-outlives-refund",
        table_row: "q2",
        broken_behavior: "a cached refusal outlives a refund",
        edits: &[
            edit(
                "src/rate_limit/engine/charge_receipt.rs",
                "if matches!(adjustment.kind, AdjustmentKind::Refund { .. }) {",
                "if !FAULT && matches!(adjustment.kind, AdjustmentKind::Refund { .. }) {",
            ),
            edit(
                "src/rate_limit/engine/check_request.rs",
                "let is_unstable = self.may_end_early || may_be_refunded || leases;",
                "let is_unstable = !FAULT && (self.may_end_early || may_be_refunded || leases);",
            ),
        ],
        suites: &[unit_tests(&["rate_limit::"])],
    },
    SourceFault {
        name: "whole-quota-in-outage",
        table_row: "q10",
        broken_behavior: "in an outage each process admits the whole quota",
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
        suites: &[unit_tests(&["rate_limit::"])],
    },
    SourceFault {
        name: "lease-outlives-window",
        table_row: "q1",
        broken_behavior: "a quota leased in one window is spent in the next",
        edits: &[
            edit(
                "src/rate_limit/engine/quota_lease.rs",
                ".filter(|_| now < self.valid_until && self.units > 0)?;",
                ".filter(|_| (FAULT || now < self.valid_until) && self.units > 0)?;",
            ),
            edit(
                "src/rate_limit/engine/quota_lease.rs",
                "let (reset_after, remaining) = (self.valid_until - now,",
                "let (reset_after, remaining) = (self.valid_until.saturating_duration_since(now),",
            ),
        ],
        suites: &[unit_tests(&["rate_limit::"])],
    },
    SourceFault {
        name: "translated-clients-share",
        table_row: "q1",
        broken_behavior: "all clients behind NAT64 have one quota",
        edits: &[edit(
            "src/key/embedded_ipv4.rs",
            "let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() else { return None };",
            "ORIGINAL\n    if FAULT {\n        return None;\n    }",
        )],
        suites: &[unit_tests(&["key::"]), scenario_tests(&["client_identity::"])],
    },
    SourceFault {
        name: "dropped-check-keeps-its-charge",
        table_row: "q11",
        broken_behavior: "a check that is dropped stays charged",
        edits: &[edit(
            "src/rate_limit/engine/charge_receipt.rs",
            "        let _ = self.refund_all();",
            "        if !FAULT {\n            let _ = self.refund_all();\n        }",
        )],
        suites: &[unit_tests(&["rate_limit::"])],
    },
];
