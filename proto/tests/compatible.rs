//! What was released stays: the contract may grow, and nothing of it may go away or become something else.
//!
//! `released/slurm_serve.v1.binpb` holds the descriptors of the last release. At a release it is renewed by
//! `UPDATE_RELEASED=1 cargo test -p slurm-serve-proto --test compatible`.

use std::collections::BTreeMap;

use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet, ServiceDescriptorProto,
};

const RELEASED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/released/slurm_serve.v1.binpb");

/// Everything of a set, by full name.
#[derive(Default)]
struct Contract {
    /// `MESSAGE` → its fields by number.
    messages: BTreeMap<String, BTreeMap<i32, FieldDescriptorProto>>,
    /// `ENUM` → its values by number.
    enums: BTreeMap<String, BTreeMap<i32, String>>,
    /// `SERVICE` → its calls by name: what goes in and out, and which of both are streams.
    services: BTreeMap<String, BTreeMap<String, [(String, bool); 2]>>,
}

impl Contract {
    fn of(set: &FileDescriptorSet) -> Self {
        let mut all = Self::default();
        for file in &set.file {
            let package = file.package();
            file.message_type.iter().for_each(|it| all.message(package, it));
            file.enum_type.iter().for_each(|it| all.enumeration(package, it));
            file.service.iter().for_each(|it| all.service(package, it));
        }
        all
    }

    fn message(&mut self, within: &str, message: &DescriptorProto) {
        let name = format!("{within}.{}", message.name());
        message.nested_type.iter().for_each(|it| self.message(&name, it));
        message
            .enum_type
            .iter()
            .for_each(|it| self.enumeration(&name, it));
        let fields = message.field.iter().map(|it| (it.number(), it.clone()));
        self.messages.insert(name, fields.collect());
    }

    fn enumeration(&mut self, within: &str, one: &EnumDescriptorProto) {
        let values = one.value.iter().map(|it| (it.number(), it.name().to_owned()));
        self.enums
            .insert(format!("{within}.{}", one.name()), values.collect());
    }

    fn service(&mut self, within: &str, service: &ServiceDescriptorProto) {
        let calls = service.method.iter().map(|it| {
            let takes = (it.input_type().to_owned(), it.client_streaming());
            let gives = (it.output_type().to_owned(), it.server_streaming());
            (it.name().to_owned(), [takes, gives])
        });
        self.services
            .insert(format!("{within}.{}", service.name()), calls.collect());
    }
}

/// What a peer of the last release sees of a field.
fn seen(field: &FieldDescriptorProto) -> String {
    let parts = (
        field.name().to_owned(),
        field.r#type(),
        field.type_name().to_owned(),
        field.label(),
        field.proto3_optional(),
        // In a oneof or not; which one has a number that may change.
        field.oneof_index.is_some(),
    );
    format!("{parts:?}")
}

/// What of `old` is not in `new` any more, or is something else; one line each.
fn broken(old: &FileDescriptorSet, new: &FileDescriptorSet) -> Vec<String> {
    let (old, new) = (Contract::of(old), Contract::of(new));
    let mut lines = Vec::new();
    for (name, fields) in &old.messages {
        match new.messages.get(name) {
            None => lines.push(format!("message {name} is gone")),
            Some(now) => kept(&mut lines, name, fields, now, seen),
        }
    }
    for (name, values) in &old.enums {
        match new.enums.get(name) {
            None => lines.push(format!("enum {name} is gone")),
            Some(now) => kept(&mut lines, name, values, now, String::clone),
        }
    }
    for (name, calls) in &old.services {
        match new.services.get(name) {
            None => lines.push(format!("service {name} is gone")),
            Some(now) => kept(&mut lines, name, calls, now, Clone::clone),
        }
    }
    lines
}

/// Each part of `name` must be there still, and look the same.
fn kept<K: Ord + std::fmt::Display, V, S: PartialEq + std::fmt::Debug>(
    lines: &mut Vec<String>,
    name: &str,
    old: &BTreeMap<K, V>,
    new: &BTreeMap<K, V>,
    seen: impl Fn(&V) -> S,
) {
    for (key, was) in old {
        match new.get(key) {
            None => lines.push(format!("{name}: {key} ({:?}) is gone", seen(was))),
            Some(is) if seen(is) != seen(was) => {
                lines.push(format!("{name}: {key} was {:?} and is {:?}", seen(was), seen(is)))
            }
            Some(_) => {}
        }
    }
}

fn present() -> FileDescriptorSet {
    FileDescriptorSet::decode(slurm_serve_proto::FILE_DESCRIPTOR_SET).expect("the descriptors decode")
}

#[test]
fn nothing_that_was_released_has_changed() {
    if std::env::var_os("UPDATE_RELEASED").is_some() {
        std::fs::write(RELEASED, slurm_serve_proto::FILE_DESCRIPTOR_SET).expect("write the release");
    }
    let released = std::fs::read(RELEASED).expect("released/slurm_serve.v1.binpb");
    let released = FileDescriptorSet::decode(&*released).expect("it decodes");
    let lines = broken(&released, &present());
    assert!(
        lines.is_empty(),
        "this breaks peers of the last release:\n{}",
        lines.join("\n")
    );
}

#[test]
fn every_kind_of_break_is_found_and_additions_are_none() {
    let old = present();
    let breaks = |change: fn(&mut FileDescriptorSet)| {
        let mut new = old.clone();
        change(&mut new);
        broken(&old, &new)
    };
    let found = |change, words: &[&str]| {
        let lines = breaks(change);
        assert!(
            lines
                .iter()
                .any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?}: {lines:?}"
        );
    };
    found(
        |set| drop(message(set, "Model").field.remove(0)),
        &["v1.Model: 1 ", "gone"],
    );
    found(
        |set| message(set, "Model").field[0].number = Some(99),
        &["v1.Model: 1 ", "gone"],
    );
    found(
        |set| message(set, "Model").field[0].name = Some("title".into()),
        &["v1.Model: 1 ", "title"],
    );
    found(
        |set| message(set, "Model").field[0].r#type = Some(5),
        &["v1.Model: 1 ", "Int32"],
    );
    found(
        |set| message(set, "Model").field[0].label = Some(3),
        &["v1.Model: 1 ", "Repeated"],
    );
    found(
        |set| message(set, "WatchModelsResponse").field[1].oneof_index = None,
        &["v1.WatchModelsResponse: 2 "],
    );
    found(
        |set| {
            set.file
                .iter_mut()
                .for_each(|file| file.message_type.retain(|it| it.name() != "Heartbeat"))
        },
        &["message", "Heartbeat is gone"],
    );
    found(
        |set| drop(file(set, "model.proto").enum_type[0].value.remove(3)),
        &["v1.ModelState: 3 ", "gone"],
    );
    found(
        |set| file(set, "model.proto").enum_type[0].value[3].number = Some(77),
        &["v1.ModelState: 3 ", "gone"],
    );
    found(
        |set| drop(file(set, "catalog.proto").service[0].method.remove(0)),
        &["v1.Catalog: ListModels", "gone"],
    );
    found(
        |set| file(set, "catalog.proto").service[0].method[0].server_streaming = Some(true),
        &["v1.Catalog: ListModels", "true"],
    );
    found(
        |set| file(set, "catalog.proto").service[0].method[0].input_type = Some(".x".into()),
        &["v1.Catalog: ListModels", ".x"],
    );
    found(
        |set| file(set, "catalog.proto").service.clear(),
        &["service", "v1.Catalog is gone"],
    );

    let grown = breaks(|set| {
        let field = FieldDescriptorProto {
            number: Some(500),
            ..message(set, "Model").field[0].clone()
        };
        message(set, "Model").field.push(field);
        let file = file(set, "model.proto");
        file.message_type.push(DescriptorProto::default());
        file.service.push(ServiceDescriptorProto::default());
    });
    assert_eq!(grown, [""; 0]);
}

fn file<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut prost_types::FileDescriptorProto {
    let found = set.file.iter_mut().find(|file| file.name().ends_with(name));
    found.expect("a file of that name")
}

fn message<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut DescriptorProto {
    let mut all = set.file.iter_mut().flat_map(|file| &mut file.message_type);
    all.find(|message| message.name() == name)
        .expect("a message of that name")
}
