//! Namespaces are the one kind of value that a template can change, so the one that can come to hold itself; such a ring would never be
//! freed. Every namespace of a render is remembered, and what could close a ring is taken out of it when the render is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Kwargs, Rest, Value, ValueKind};
use minijinja::{Environment, Error, State};

#[derive(Clone, Default)]
pub struct Namespaces(Arc<Mutex<Vec<Value>>>);

impl Namespaces {
    /// Has `environment` remember the namespaces that it makes.
    pub fn watch(&self, environment: &mut Environment<'static>) {
        let Some(make) = environment.globals().find(|(name, _)| *name == "namespace").map(|(_, make)| make)
        else {
            return;
        };
        let made = self.0.clone();
        environment.add_function(
            "namespace",
            move |state: &mut State, args: Rest<Value>, named: Kwargs| -> Result<Value, Error> {
                let mut args = args.0;
                if named.args().next().is_some() {
                    args.push(Value::from(named));
                }
                let namespace = make.call(state, &args)?;
                made.lock().unwrap_or_else(PoisonError::into_inner).push(namespace.clone());
                Ok(namespace)
            },
        );
    }

    /// Takes every list, map and namespace out of the namespaces. The engine has no other way to change one than a template.
    pub fn untie(&self) {
        let made = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let mut environment = Environment::empty();
        let mut known: HashMap<String, bool> = HashMap::new(); // names, and whether a template can set them
        for namespace in made {
            for key in namespace.try_iter().into_iter().flatten() {
                let held = namespace.get_item(&key).unwrap_or_default().kind();
                let simple =
                    matches!(held, ValueKind::String | ValueKind::Number | ValueKind::Bool | ValueKind::None);
                let Some(name) = key.as_str().filter(|_| !simple) else { continue };
                let settable = *known.entry(name.to_string()).or_insert_with(|| {
                    let source = format!("{{% set it.{name} = 0 %}}");
                    environment.add_template_owned(name.to_string(), source).is_ok()
                });
                if settable {
                    let context: IndexMap<Value, Value> = [(Value::from("it"), namespace.clone())].into();
                    let template = environment.get_template(name);
                    let _ = template.and_then(|t| t.render(Value::from_object(context)));
                }
            }
        }
    }
}
