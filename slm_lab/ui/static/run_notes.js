import { make } from "./dom.js";
import { post } from "./server.js";

// Tags and a note, saved as one leaves the field.

export function buildNotes(id, { tags, note }) {
  const tagField = make("input", { type: "text", placeholder: "tags, separated by commas", "aria-label": "Tags", maxlength: 400, value: tags.join(", ") });
  const noteField = make("textarea", { rows: 3, placeholder: "a note on this run", "aria-label": "Note", maxlength: 20000 });
  noteField.value = note;
  const message = make("span", { class: "muted small", role: "status" });
  async function save() {
    const given = tagField.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    try {
      const kept = await post("/api/notes", { run: id, tags: given, note: noteField.value });
      tagField.value = kept.tags.join(", ");
      message.textContent = "saved in notes.json";
    } catch (error) {
      message.textContent = error.message;
    }
  }
  tagField.addEventListener("change", save);
  noteField.addEventListener("change", save);
  return make("div", { class: "notes" }, tagField, noteField, message);
}
