//! `PolicyDocument`: the form of a policy in a configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    policy_cost_and_reactions::{MAX_LEASE_SIZE, Policy, decode_name},
    quota::Quota,
};
use crate::{
    duration_text::DurationText, durations::MAX_DURATION, error::Error, outage::RateLimitOutage,
    store::Penalty,
};

/// Settings of a policy. Those with their default are absent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    quota: Quota,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<PenaltyDocument>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_outage: Option<RateLimitOutage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota_lease: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_refusals_for: Option<DurationText>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PenaltyDocument {
    after_refusals: u32,
    block: DurationText,
}

impl From<Policy> for PolicyDocument {
    fn from(policy: Policy) -> Self {
        let quota = policy.quota();
        let default = Policy::new(quota);
        Self {
            name: policy.is_named.then(|| decode_name(policy.name()).into_owned()),
            quota,
            cost: Some(policy.default_cost()).filter(|cost| *cost != default.default_cost()),
            penalty: policy.penalty_rule().map(|penalty| PenaltyDocument {
                after_refusals: penalty.after_refusals,
                block: DurationText(penalty.block_for),
            }),
            shadow: policy.is_shadow(),
            on_outage: Some(policy.outage()).filter(|outage| *outage != default.outage()),
            quota_lease: Some(policy.lease_size()).filter(|size| *size != default.lease_size()),
            cache_refusals_for: policy.max_refusal_ttl().map(DurationText),
        }
    }
}

/// Values that a setter clamps are errors: a mistyped configuration must not become another policy.
impl TryFrom<PolicyDocument> for Policy {
    type Error = Error;

    fn try_from(document: PolicyDocument) -> Result<Self, Error> {
        let mut policy = Self::new(document.quota);
        if let Some(name) = &document.name {
            policy = policy.with_name(name);
        }
        if let Some(cost) = document.cost {
            policy = policy.try_cost(cost)?;
        }
        if let Some(penalty) = document.penalty {
            let Penalty { after_refusals, block_for } = checked_penalty(&penalty)?;
            policy = policy.penalty(after_refusals, block_for);
        }
        if document.shadow {
            policy = policy.shadow();
        }
        if let Some(outage) = document.on_outage {
            policy = policy.on_outage(outage);
        }
        if let Some(max_units) = document.quota_lease {
            if max_units > MAX_LEASE_SIZE {
                return Err(Error::setting(format!(
                    "Policy::quota_lease: at most {MAX_LEASE_SIZE} units, not {max_units}"
                )));
            }
            policy = policy.try_quota_lease(max_units)?;
        }
        if let Some(DurationText(ttl)) = document.cache_refusals_for {
            policy = policy.cache_refusals_for(ttl);
        }
        Ok(policy)
    }
}

fn checked_penalty(penalty: &PenaltyDocument) -> Result<Penalty, Error> {
    let PenaltyDocument { after_refusals, block: DurationText(block_for) } = *penalty;
    if after_refusals == 0 {
        return Err(Error::setting("Policy::penalty: after_refusals is at least 1"));
    }
    if block_for < Duration::from_millis(1) || block_for > MAX_DURATION {
        return Err(Error::setting("Policy::penalty: block for 1 ms to a year"));
    }
    Ok(Penalty { after_refusals, block_for })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_survives_its_json_form() {
        let minute = Quota::requests(100).per(Duration::from_secs(60));
        let full = Policy::new(minute)
            .with_name("käse 100%")
            .cost(3)
            .penalty(50, Duration::from_secs(600))
            .shadow()
            .on_outage(RateLimitOutage::Refuse)
            .quota_lease(20)
            .cache_refusals_for(Duration::from_millis(100));
        for (policy, json) in [
            (Policy::new(minute.burst(20)), r#"{"quota":"100 per 60s burst 20"}"#),
            (
                full,
                r#"{"name":"käse 100%","quota":"100 per 60s","cost":3,"penalty":{"after_refusals":50,"block":"600s"},"shadow":true,"on_outage":"refuse","quota_lease":20,"cache_refusals_for":"100ms"}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&policy).expect("it has a JSON form"), json);
            assert_eq!(serde_json::from_str::<Policy>(json).expect(json), policy);
        }
    }

    #[test]
    fn mistyped_policies_are_errors_that_name_the_setting() {
        for (setting, problem) in [
            (r#""cost":101"#, "Policy::cost: 101 exceeds the capacity"),
            (r#""penalty":{"after_refusals":0,"block":"1s"}"#, "after_refusals is at least 1"),
            (r#""penalty":{"after_refusals":1,"block":"0s"}"#, "block for 1 ms to a year"),
            (r#""penalty":{"after_refusals":1,"block":60}"#, "expected a string"),
            (r#""quota_lease":10001"#, "Policy::quota_lease: at most 10000 units"),
            (r#""cache_refusals_for":"soon""#, "`soon` is no duration"),
            (r#""on_outage":"panic""#, "unknown variant `panic`"),
            (r#""burst":7"#, "unknown field `burst`"),
        ] {
            let json = format!(r#"{{"quota":"100 per 60s",{setting}}}"#);
            let error = serde_json::from_str::<Policy>(&json).expect_err(&json).to_string();
            assert!(error.contains(problem), "{error}");
        }
        let json = r#"{"quota":"100 per 60s gcra","quota_lease":20}"#;
        let error = serde_json::from_str::<Policy>(json).expect_err(json).to_string();
        assert!(error.contains("only the quota of a fixed window can be leased"), "{error}");
        assert!(serde_json::from_str::<Policy>(r#"{"name":"search"}"#).is_err());
    }
}
