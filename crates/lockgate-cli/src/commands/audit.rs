//! `lockgate audit`: actions of operators, newest first.

use clap::Args;
use lockgate::admin::{AuditCursor, AuditOutcome, AuditRecord};

use crate::{
    cli_error::CliError, command_context::CommandContext, paged_rows::read_rows, readable_time::ago,
};

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Most records; the log keeps 10,000
    #[arg(long, default_value_t = 20)]
    limit: usize,
}

pub(crate) async fn run(
    context: &CommandContext<'_>,
    audit: &AuditArguments,
) -> Result<(), CliError> {
    let records = read_rows(audit.limit, AuditCursor::default(), async |from, max_records| {
        let page = context.store.audit(from, max_records).await?;
        Ok((page.records, page.next))
    });
    let records = records.await?;
    let columns = ["TIME", "OPERATOR", "ACTION", "TARGET", "REASON", "OUTCOME"];
    context.output.print_rows(&records, columns, |record: &AuditRecord| {
        let outcome = match &record.outcome {
            AuditOutcome::Begun => "begun, end unknown".to_owned(),
            AuditOutcome::Done => "done".to_owned(),
            AuditOutcome::Refused => "refused".to_owned(),
            AuditOutcome::Failed(text) => text.clone(),
            _ => "unknown to this version".to_owned(),
        };
        [
            ago(Some(record.recorded_at())),
            record.operator.clone(),
            record.action.clone(),
            record.target.clone(),
            record.reason.clone(),
            outcome,
        ]
    })
}
