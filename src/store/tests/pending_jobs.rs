//! Lists of the jobs that wait or run.

use std::time::Duration;

use super::{
    on_every_store,
    store_harness::{
        LONG_TIME, StoreHarness, enqueue_command, keys_of_one_shard, new_token,
        retryable_enqueue_command, settle_command, test_key,
    },
};
use crate::{
    Key,
    store::backend::{
        EnqueueCommand, EnqueueOutcome, JobId, JobPolicy, JobState, JobView, OnFailure,
        PendingCursor, Settlement,
    },
};

on_every_store!(
    waiting_and_running_jobs_are_listed,
    pages_of_any_size_list_each_job_once,
    jobs_of_many_locks_are_all_listed,
    unchanged_jobs_are_listed_while_others_change,
    listed_pending_job_has_no_bodies,
);

/// The pages of so many, and what is in them.
async fn read_pages(rig: &StoreHarness, most: usize) -> Vec<Vec<(JobId, JobView)>> {
    let (mut from, mut pages) = (Some(PendingCursor::default()), Vec::new());
    while let Some(mark) = from {
        let page = rig.list_pending(test_key().shard(), mark, most).await;
        assert!(page.jobs.len() <= most, "{}", page.jobs.len());
        assert!(
            page.next_mark.is_none_or(|next| next > mark || next.scan_cursor != mark.scan_cursor),
            "it goes on"
        );
        from = page.next_mark;
        pages.push(page.jobs);
    }
    pages
}

async fn read_all_pending(rig: &StoreHarness) -> Vec<(JobId, JobView)> {
    read_pages(rig, 100).await.concat()
}

fn sorted_job_ids(mut jobs: Vec<(JobId, JobView)>) -> Vec<JobId> {
    jobs.sort_by(|(one, _), (other, _)| one.cmp(other));
    jobs.into_iter().map(|(id, _)| id).collect()
}

async fn waiting_and_running_jobs_are_listed(rig: &StoreHarness) {
    let [one, two, three] = keys_of_one_shard::<3>();
    assert_eq!(read_all_pending(rig).await, []);
    let (runs, waits) = (rig.enqueue_job(&one).await, rig.enqueue_job(&one).await);
    let run = new_token();
    rig.start_run(&one, &runs, &run).await;
    let policy = JobPolicy { delay: LONG_TIME, ..enqueue_command(&two).policy };
    let delayed = EnqueueCommand { policy, ..enqueue_command(&two) };
    let late = delayed.id.clone();
    assert_eq!(rig.enqueue(delayed).await, EnqueueOutcome::Stored { position: 0 });
    // One that others may pass while it waits for its retry.
    let call = retryable_enqueue_command(&three);
    let policy = JobPolicy { on_failure: OnFailure::Skip, ..call.policy };
    let (call, failed) = (EnqueueCommand { policy, ..call }, new_token());
    let retried = call.id.clone();
    rig.enqueue(call).await;
    rig.start_run(&three, &retried, &failed).await;
    let verdict = Settlement::Retry { delay: LONG_TIME, reason: "failed" };
    assert!(rig.settle(settle_command(&three, &retried, &failed, verdict)).await);
    // And two that have ended.
    let (ended, cancelled) = (rig.enqueue_job(&three).await, rig.enqueue_job(&three).await);
    assert_eq!(rig.cancel(&cancelled).await, Some(JobState::Cancelled));
    let run = new_token();
    rig.start_run(&three, &ended, &run).await;
    assert!(rig.finish_run(&three, &ended, &run).await);

    let told = read_all_pending(rig).await;
    assert_eq!(told.len(), 4, "{told:?}");
    for (id, state, position, lock, is_due) in [
        (&runs, JobState::Running, Some(1), &one, true),
        (&waits, JobState::Queued, Some(2), &one, true),
        (&late, JobState::Queued, None, &two, false),
        (&retried, JobState::Queued, None, &three, false),
    ] {
        let (_, job) = told.iter().find(|(other, _)| other == id).expect("it is there");
        assert_eq!((job.state, job.position), (state, position), "{job:?}");
        assert_eq!(job.history.lock.as_ref(), Some(lock));
        assert_eq!(job.history.due_in.is_none(), is_due, "{job:?}");
        // As by its id.
        let alone = rig.job_view(id).await.expect("it is known");
        assert_eq!(
            (alone.state, alone.position, alone.attempts, &alone.reason),
            (job.state, job.position, job.attempts, &job.reason)
        );
    }
    let (_, job) = told.iter().find(|(other, _)| *other == retried).expect("it is there");
    assert_eq!((job.reason.as_deref(), job.attempts), (Some("failed"), 1));
    let behind = |id| told.iter().position(|(other, _)| other == id);
    assert!(behind(&runs) < behind(&waits), "in the order of their line");
}

async fn pages_of_any_size_list_each_job_once(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<4>();
    let mut expected = Vec::new();
    for (n, key) in keys.iter().enumerate() {
        for _ in 0..3 * n {
            expected.push(rig.enqueue_job(key).await);
        }
        let policy = JobPolicy { delay: LONG_TIME, ..enqueue_command(key).policy };
        let late = EnqueueCommand { policy, ..enqueue_command(key) };
        expected.push(late.id.clone());
        rig.enqueue(late).await;
    }
    expected.sort();
    for most in [1, 2, 3, 5, 22, 100] {
        let pages = read_pages(rig, most).await;
        // What is full may be all there is.
        let (last, full) = pages.split_last().expect("one at least");
        assert!(full.iter().all(|page| page.len() == most), "{most}");
        assert!(last.len() <= most);
        assert_eq!(sorted_job_ids(pages.concat()), expected, "by {most}");
    }
    // Another shard has a list of its own.
    let elsewhere = (test_key().shard() + 1) % 64;
    let none = rig.list_pending(elsewhere, PendingCursor::default(), 100).await;
    assert_eq!((none.jobs.len(), none.next_mark), (0, None));
}

/// More than a server keeps in one piece, and than one step of its scan finds.
async fn jobs_of_many_locks_are_all_listed(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<300>();
    let mut expected = Vec::new();
    for key in &keys {
        let caps = crate::store::backend::StorageLimits::NONE;
        let call = EnqueueCommand { limits: caps, ..enqueue_command(key) };
        expected.push(call.id.clone());
        rig.enqueue(call).await;
    }
    expected.sort();
    for most in [7, 100] {
        assert_eq!(sorted_job_ids(read_pages(rig, most).await.concat()), expected, "by {most}");
    }
}

async fn unchanged_jobs_are_listed_while_others_change(rig: &StoreHarness) {
    let keys = keys_of_one_shard::<8>();
    let put_in = async |keys: &[Key]| {
        let mut ids = Vec::new();
        for key in keys {
            ids.push(rig.enqueue_job(key).await);
        }
        ids
    };
    let goes = put_in(&keys).await;
    let mut stays = put_in(&keys).await;
    let (mut from, mut seen, mut n) = (Some(PendingCursor::default()), Vec::new(), 0);
    while let Some(mark) = from {
        let page = rig.list_pending(test_key().shard(), mark, 2).await;
        seen.extend(page.jobs.into_iter().map(|(id, _)| id));
        from = page.next_mark;
        if let Some(id) = goes.get(n) {
            assert_eq!(rig.cancel(id).await, Some(JobState::Cancelled));
            rig.enqueue_job(&keys[n]).await;
            rig.advance(Duration::from_millis(1)).await;
        }
        n += 1;
    }
    stays.retain(|id| !seen.contains(id));
    assert_eq!(stays, [], "all of them were told");
}

async fn listed_pending_job_has_no_bodies(rig: &StoreHarness) {
    let _ = rig.enqueue_job(&test_key()).await;
    let [(_, job)] = &read_all_pending(rig).await[..] else { panic!("one") };
    assert_eq!((&job.response, &job.history.webhook_event), (&None, &None));
}
