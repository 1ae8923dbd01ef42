//! What of a model a caller may see.

use slurm_serve_proto::v1::{Ending, Model};
use tonic::Status;

use super::caller::{Caller, Via};
use crate::munge;

/// The model as this caller sees it.
pub async fn show(mut model: Model, caller: Caller) -> Result<Model, Status> {
    let owns = caller.owns(&model);
    if !owns {
        model.progress.clear();
        model.log_path.clear();
        model.ending = model.ending.map(in_short);
        model.last_failure = model.last_failure.map(in_short);
    }
    let may_use = owns || (caller.roles.proxy && model.published);
    if !may_use {
        model.key.clear();
    } else if caller.via == Via::Munge && !model.key.is_empty() {
        // Only who calls can read it: munge encrypts what is restricted to a uid.
        let sealed = munge::encode(std::mem::take(&mut model.key), Some(caller.user()?)).await;
        model.key = sealed.map_err(|e| Status::internal(e.to_string()))?;
    }
    Ok(model)
}

/// What everybody may know of an end.
fn in_short(ending: Ending) -> Ending {
    Ending {
        cause: ending.cause,
        text: ending.text,
        ..Ending::default()
    }
}

/// May this caller know that it exists?
pub fn is_visible(model: &Model, caller: Caller) -> bool {
    caller.owns(model) || (model.published && caller.roles.read)
}
