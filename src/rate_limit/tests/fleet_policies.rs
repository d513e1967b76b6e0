//! What operators see of the policies of all processes, and of one subject.

use super::{
    SECOND,
    gate_requests::{gate_by_header, run_request},
    named_policy, per_minute, remaining_in_store,
};
use crate::{
    Policy, Quota,
    admin::{Operator, Permission},
    gate::Gate as _,
    key::Key,
    rate_limit::{FleetPolicy, PolicyChange, SubjectQuota},
    store::Store,
};

async fn policy(store: &Store, name: &str) -> FleetPolicy {
    let policies = store.policies().await.expect("it answers");
    policies.into_iter().find(|policy| policy.name == name).expect("a process has reported it")
}

async fn quota_left(store: &Store, policy: &str, subject: impl Into<Key>) -> SubjectQuota {
    let limit = store.inspect_limit(policy, subject).await.expect("it answers");
    let [left] = &limit.quotas[..] else { panic!("{limit}") };
    left.clone()
}

#[tokio::test]
async fn deployment_shows_both_policies_and_the_processes_that_follow_a_change() {
    let store = Store::memory();
    let processes = [store.clone(), store.as_another_process(), store.as_another_process()];
    for (process, limit) in processes.iter().zip([1, 1, 2]) {
        let limiter = process.rate_limiter(named_policy("käse", per_minute(limit)));
        for _ in 0..3 {
            limiter.check("7", 1).await.expect("it answers");
        }
    }
    let reported = policy(&store, "käse").await;
    assert_eq!((reported.processes, reported.changed_processes, reported.change), (3, 0, None));
    let deployed = reported.deployed.iter();
    let deployed: Vec<_> =
        deployed.map(|form| (form.policy.quota.as_str(), form.processes)).collect();
    assert!(deployed.contains(&("1 per 60s", 2)) && deployed.contains(&("2 per 60s", 1)));
    assert_eq!(reported.refusals, 7, "of nine requests");
    let top = &reported.top_refused[..];
    assert_eq!((top[0].subject.as_str(), top[0].refusals, top[0].max_refusals), ("7", 7, 7));

    let admin = store.admin(Operator::new("ada", Permission::Act));
    let change = PolicyChange::new().shadow(true);
    admin.set_policy("käse", change, "a test").await.expect("it may");
    let followed = async {
        loop {
            let reported = policy(&store, "käse").await;
            assert_eq!((reported.processes, reported.change), (3, Some(change)));
            if reported.changed_processes == 3 {
                return;
            }
        }
    };
    tokio::time::timeout(10 * SECOND, followed).await.expect("all follow");
}

#[tokio::test]
async fn layer_reports_its_policies_with_their_keys() {
    let store = Store::memory();
    let layer = gate_by_header("a", named_policy("search", per_minute(5).burst(2)).shadow())
        .and(gate_by_header("b", per_minute(9)))
        .store(&store);
    layer.validate_settings();
    // The process answers operators since it has used the store.
    store.ensure_listening();
    let reported = policy(&store, "search").await;
    let deployed = &reported.deployed[0].policy;
    assert_eq!((deployed.keys.as_str(), deployed.counting.as_str()), ("header a", "gcra"));
    assert_eq!(
        (deployed.limit, deployed.window_ms, deployed.burst),
        (Some(5), Some(60_000), Some(2))
    );
    assert!(deployed.is_shadow && deployed.is_named && !deployed.is_looked_up);
    let unnamed = policy(&store, "9-per-60s").await;
    assert!(!unnamed.deployed[0].policy.is_named);

    for _ in 0..3 {
        assert_eq!(run_request(&layer, 200).await, 200);
    }
    let reported = policy(&store, "search").await;
    assert_eq!((reported.refusals, reported.processes, reported.deployed.len()), (1, 1, 1));
    assert_eq!(reported.top_refused[0].subject, "h:a::1", "it would have been refused");
    assert_eq!(quota_left(&store, "9-per-60s", Key::header("b", b"2")).await.remaining, Some(6));
}

#[tokio::test]
async fn inspection_charges_nothing_and_knows_changes_and_blocks() {
    let minute = per_minute(100);
    for quota in [minute, minute.sliding(), minute.burst(100)] {
        let store = Store::memory();
        let other = store.as_another_process();
        let search = named_policy("search", quota);
        let limiter = other.rate_limiter(search.clone());
        assert!(limiter.check("7", 3).await.expect("it answers").is_admitted());
        for _ in 0..2 {
            let left = quota_left(&store, "search", "7").await;
            assert_eq!((left.remaining, left.quota), (Some(97), quota.to_string()));
            assert_eq!((left.retry_after, left.blocked_for), (std::time::Duration::ZERO, None));
        }
        assert_eq!(quota_left(&store, "search", "8").await.remaining, Some(100));
        assert_eq!(remaining_in_store(&store, &search, "7").await, 97);

        let admin = store.admin(Operator::new("ada", Permission::Act));
        admin.block("search", "7", 3600 * SECOND, "a test").await.expect("it may");
        let left = quota_left(&store, "search", "7").await;
        let block = left.blocked_for.expect("it is blocked");
        assert!(block > 3000 * SECOND && left.retry_after >= block, "{left:?}");
        let limit = store.inspect_limit("search", "7").await.expect("it answers");
        assert!(limit.to_string().contains("left under search, blocked for 3"), "{limit}");
        admin.unblock("search", "7", "a test").await.expect("it may");
        assert_eq!(quota_left(&store, "search", "7").await.blocked_for, None);
    }
}

#[tokio::test]
async fn inspection_of_other_quotas() {
    let store = Store::memory();
    let limiter = store
        .rate_limiter(Policy::new(Quota::unlimited()).with_name("free"))
        .and(named_policy("none", per_minute(0)));
    limiter.check("7", 0).await.expect("it answers");
    assert_eq!(quota_left(&store, "free", "7").await.remaining, None);
    let none = quota_left(&store, "none", "7").await;
    assert_eq!((none.remaining, none.retry_after), (Some(0), 60 * SECOND));
    let unknown = store.inspect_limit("other", "7").await.expect("it answers");
    assert_eq!(unknown.to_string(), "no process that answered has a policy other");

    // It is changed before any process has it.
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let change = PolicyChange::new().quota(per_minute(5));
    admin.set_policy("other", change, "a test").await.expect("it may");
    assert_eq!(quota_left(&store, "other", "7").await.remaining, Some(5));
    let reported = policy(&store, "other").await;
    assert_eq!((reported.processes, reported.deployed.len()), (0, 0));
}
