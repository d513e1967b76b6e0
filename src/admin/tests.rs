//! Tests of permissions and of the audit log.

use std::time::Duration;

use super::{AdminError, AuditCursor, AuditOutcome, Operator, Permission};
use crate::{
    Policy, Quota,
    rate_limit::PolicyChange,
    store::{BackendFault, Store, faulty_store},
};

async fn outcomes(store: &Store) -> Vec<(String, AuditOutcome)> {
    let page = store.audit(AuditCursor::default(), 100).await.expect("the store answers");
    page.records.into_iter().map(|record| (record.action, record.outcome)).collect()
}

#[tokio::test]
async fn reader_is_refused_and_recorded() {
    let store = Store::memory();
    let reader = store.admin(Operator::new("ada", Permission::Look));
    for reason in ["deploy", ""] {
        assert!(matches!(reader.pause_jobs(reason).await, Err(AdminError::NotPermitted)));
    }
    assert!(!store.deferred_jobs().is_paused().await.expect("the store answers"));
    let refused = ("pause-jobs".to_owned(), AuditOutcome::Refused);
    assert_eq!(outcomes(&store).await, [refused.clone(), refused]);
}

#[tokio::test]
async fn action_is_recorded_with_operator_reason_and_outcome() {
    let store = Store::memory();
    let admin = store.admin(Operator::new("ada\u{1b}", Permission::Act));
    assert!(matches!(admin.pause_jobs(" ").await, Err(AdminError::Invalid(_))));
    admin.pause_jobs("deploy\n").await.expect("it may");
    let unknown = "07".repeat(17).parse().expect("an id");
    let refused = admin.cancel_job(&unknown, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPossible(_))), "{refused:?}");

    let page = store.audit(AuditCursor::default(), 1).await.expect("the store answers");
    let failed = AuditOutcome::Failed("there is no such job".to_owned());
    assert_eq!(
        (&page.records[0].outcome, page.records[0].action.as_str()),
        (&failed, "cancel-job")
    );
    let next = page.next.expect("an older record");
    let older = store.audit(next, 2).await.expect("the store answers");
    let record = &older.records[0];
    assert_eq!((record.operator.as_str(), record.reason.as_str()), ("ada", "deploy"));
    assert_eq!((&record.outcome, older.next), (&AuditOutcome::Done, None));
    assert!(record.recorded_us > 0);
    let without_reason = AuditOutcome::Failed("give a reason for the audit log".to_owned());
    assert_eq!(older.records[1].outcome, without_reason);
}

#[tokio::test]
async fn run_of_an_unknown_job_is_refused_and_recorded() {
    let store = Store::memory();
    let unknown = "07".repeat(17).parse().expect("an id");
    let reader = store.admin(Operator::new("eve", Permission::Look));
    let refused = reader.run_job_now(&unknown, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPermitted)), "{refused:?}");
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let refused = admin.run_job_now(&unknown, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPossible(_))), "{refused:?}");
    let failed = AuditOutcome::Failed("there is no such job".to_owned());
    let name = "run-job-now".to_owned();
    assert_eq!(outcomes(&store).await, [(name.clone(), failed), (name, AuditOutcome::Refused)]);
}

#[tokio::test]
async fn delayed_task_is_due_after_run_now() {
    let store = Store::memory();
    let queue = store.queue::<String>("emails");
    let push = queue.push(&"ada@example.org".to_owned()).delay(Duration::from_secs(300));
    let id = push.await.expect("there is room").id().clone();
    let reader = store.admin(Operator::new("eve", Permission::Look));
    let refused = reader.run_task_now("emails", &id, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPermitted)), "{refused:?}");
    assert_eq!(queue.stats().await.expect("it answers").due, 0);
    let admin = store.admin(Operator::new("ada", Permission::Act));
    admin.run_task_now("emails", &id, "a test").await.expect("it may");
    assert_eq!(queue.stats().await.expect("it answers").due, 1);
}

#[tokio::test]
async fn payloads_need_their_permission() {
    let store = Store::memory();
    let queue = store.queue::<String>("emails");
    let id = queue.push(&"ada@example.org".to_owned()).await.expect("there is room").id().clone();
    let actor = store.admin(Operator::new("ada", Permission::Act));
    let refused = actor.task_payload("emails", &id, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPermitted)));
    let reader = store.admin(Operator::new("eve", Permission::SeePayloads));
    let payload = reader.task_payload("emails", &id, "a test").await.expect("it may");
    assert_eq!(payload, "ada@example.org");
    assert_eq!(outcomes(&store).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn action_without_a_record_is_not_done() {
    let (store, faults) = faulty_store();
    let admin = store.admin(Operator::new("ada", Permission::Act));
    faults.set("append_audit_record", BackendFault::Unavailable, 1);
    assert!(matches!(admin.pause_jobs("deploy").await, Err(AdminError::Store(_))));
    assert!(!store.deferred_jobs().is_paused().await.expect("the store answers"));

    // Without its end, the record says that the end is unknown.
    faults.set("replace_audit_record", BackendFault::Unavailable, 1);
    admin.pause_jobs("deploy").await.expect("it was done");
    assert_eq!(outcomes(&store).await, [("pause-jobs".to_owned(), AuditOutcome::Begun)]);
}

#[tokio::test]
async fn policies_are_changed_and_cleared_by_name() {
    let store = Store::memory();
    let change = PolicyChange::new().shadow(true);
    let reader = store.admin(Operator::new("eve", Permission::Look));
    let refused = reader.set_policy("by user", change, "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPermitted)));
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let nothing = admin.set_policy("by user", PolicyChange::new(), "a test").await;
    assert!(matches!(nothing, Err(AdminError::Invalid(_))));
    assert_eq!(store.changed_policies().await.expect("it answers").version, 0);

    admin.set_policy("by user", change, "a test").await.expect("it may");
    let changed = store.changed_policies().await.expect("it answers");
    let encoded = Policy::new(Quota::unlimited()).with_name("by user");
    assert_eq!(
        changed.policies.into_iter().collect::<Vec<_>>(),
        [(encoded.name().to_owned(), change)]
    );
    let quota = Quota::requests(5).per(Duration::from_secs(60));
    admin.set_policy("by user", PolicyChange::new().quota(quota), "a test").await.expect("it may");
    let changed = store.changed_policies().await.expect("it answers");
    assert_eq!(changed.policies.into_values().collect::<Vec<_>>(), [change.quota(quota)]);
    admin.clear_policy("by user", "a test").await.expect("it may");
    assert!(store.changed_policies().await.expect("it answers").policies.is_empty());
    let actions: Vec<_> = outcomes(&store).await.into_iter().map(|(action, _)| action).collect();
    assert_eq!(actions, ["clear-policy", "set-policy", "set-policy", "set-policy", "set-policy"]);
}

#[tokio::test]
async fn reset_ends_refusals_that_another_process_has_cached() {
    let minute = Quota::requests(1).per(Duration::from_secs(60));
    for quota in [minute, minute.sliding(), minute.burst(1)] {
        let store = Store::memory();
        let limiter = store.rate_limiter(Policy::new(quota).with_name("search"));
        assert!(limiter.check("7", 1).await.expect("it answers").is_admitted());
        assert!(!limiter.check("7", 1).await.expect("it answers").is_admitted());
        let admin = store.as_another_process().admin(Operator::new("ada", Permission::Act));
        admin.reset_limit("search", "7", "a test").await.expect("it may");
        let admitted = async {
            while !limiter.check("7", 1).await.expect("it answers").is_admitted() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1), admitted).await.expect("it follows");
    }
}

#[tokio::test]
async fn counters_of_an_unknown_or_unnamed_policy_are_not_touched() {
    let store = Store::memory();
    let minute = Quota::requests(100).per(Duration::from_secs(60));
    let limiters = [Policy::new(minute), Policy::new(minute).with_name("by user")]
        .map(|policy| store.rate_limiter(policy));
    for limiter in limiters {
        assert!(limiter.check("7", 1).await.expect("it answers").is_admitted());
    }
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let hour = Duration::from_secs(3600);
    for (policy, text) in [("by-user", "no process has"), ("100-per-60s", "no name of its own")] {
        for result in [
            admin.block(policy, "7", hour, "a test").await,
            admin.unblock(policy, "7", "a test").await,
            admin.reset_limit(policy, "7", "a test").await,
        ] {
            let Err(AdminError::NotPossible(found)) = result else { panic!("{result:?}") };
            assert!(found.contains(text), "{found}");
        }
    }
    assert_eq!(store.changed_policies().await.expect("it answers").version, 0);
    admin.block("by user", "7", hour, "a test").await.expect("it is known");
    // One that is changed before it is deployed is known as well.
    let change = PolicyChange::new().shadow(true);
    admin.set_policy("next", change, "a test").await.expect("it may");
    admin.reset_limit("next", "7", "a test").await.expect("it is known");
}

#[tokio::test]
async fn blocked_subject_is_refused_in_all_processes_until_it_is_unblocked() {
    let store = Store::memory();
    let minute = Quota::requests(100).per(Duration::from_secs(60));
    let other = store.as_another_process();
    let limiter = other.rate_limiter(Policy::new(minute).with_name("search").quota_lease(20));
    assert!(limiter.check("7", 1).await.expect("it answers").is_admitted());
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let endless = admin.block("search", "7", Duration::MAX, "a test").await;
    assert!(matches!(endless, Err(AdminError::Invalid(_))));
    let until_admitted = async |expected: bool| {
        let follows = async {
            loop {
                let decision = limiter.check("7", 1).await.expect("it answers");
                if decision.is_admitted() == expected {
                    return decision;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(1), follows).await.expect("it follows")
    };

    let hour = Duration::from_secs(3600);
    admin.block("search", "7", hour, "a test").await.expect("it may");
    let refused = until_admitted(false).await;
    assert!(refused.retry_after() > hour / 2, "{refused:?}");
    assert!(limiter.check("8", 1).await.expect("it answers").is_admitted());
    let wider = PolicyChange::new().shadow(false);
    admin.set_policy("search", wider, "a test").await.expect("it may");
    assert!(!limiter.check("7", 1).await.expect("it answers").is_admitted(), "blocks stay");
    admin.clear_policy("search", "a test").await.expect("it may");
    let blocks_only = store.changed_policies().await.expect("it answers").policies["search"];
    assert_eq!(blocks_only, PolicyChange::new().with_blocks(true));
    let blocked_for = async || {
        let limit = store.inspect_limit("search", "7").await.expect("it answers");
        limit.quotas[0].blocked_for
    };
    assert!(blocked_for().await.is_some());
    admin.clear_blocks("search", "a test").await.expect("it may");
    until_admitted(true).await;
    assert!(store.changed_policies().await.expect("it answers").policies.is_empty());
    assert_eq!(blocked_for().await, None, "as the processes apply it");

    admin.block("search", "7", hour, "a test").await.expect("it may");
    until_admitted(false).await;
    admin.unblock("search", "7", "a test").await.expect("it may");
    until_admitted(true).await;
}

#[tokio::test]
async fn drain_of_a_process_that_does_not_answer_is_not_possible() {
    let store = Store::memory();
    let admin = store.admin(Operator::new("ada", Permission::Act));
    let refused = admin.drain_process("web-3", "a test").await;
    assert!(matches!(refused, Err(AdminError::Invalid(_))), "{refused:?}");
    let refused = admin.drain_process("07", "a test").await;
    assert!(matches!(refused, Err(AdminError::NotPossible(_))), "{refused:?}");
    let failed = AuditOutcome::Failed("no process with this id answers".to_owned());
    assert_eq!(outcomes(&store).await[0], ("drain-process".to_owned(), failed));
}
